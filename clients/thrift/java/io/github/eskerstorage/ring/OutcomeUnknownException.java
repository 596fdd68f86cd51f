package io.github.eskerstorage.ring;

import org.apache.thrift.TException;

/** A write was sent and not answered: whether it was done is not known. It was not sent again. */
public final class OutcomeUnknownException extends TException {
    private static final long serialVersionUID = 1;

    OutcomeUnknownException(String message, Throwable cause) {
        super(message, cause);
    }
}
