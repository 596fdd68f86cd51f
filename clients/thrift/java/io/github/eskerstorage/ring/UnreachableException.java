package io.github.eskerstorage.ring;

import org.apache.thrift.TException;

/** No server was reached, and nothing was done. */
public final class UnreachableException extends TException {
    private static final long serialVersionUID = 1;

    UnreachableException(String message, Throwable cause) {
        super(message, cause);
    }
}
