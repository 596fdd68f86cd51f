package io.github.eskerstorage.ring;

import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A server that has the keys below its mark, as its node in the registry is named: {@code thriftbinary_MARK:HOST:PORT}.
 *
 * @param mark the first key, or slot, that it does not have; an unsigned number
 * @param protocol how it is spoken to
 * @param address where it listens
 */
public record Instance(long mark, String protocol, Address address) {
    /** The protocol of the instances that a ring calls. */
    public static final String PROTOCOL = "thriftbinary";

    /** As the paper prints it there is a blank before the mark. */
    private static final Pattern NODE =
        Pattern.compile("([^_ :/]{1,64})[_ :](\\d{1,20}):([\\p{Graph}&&[^/]]+):(\\d{1,5})");
    private static final int PORT_MAX = 65_535;

    /** An address. */
    public record Address(String host, int port) {
        @Override
        public String toString() {
            return (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
        }
    }

    /** The instance that a node's name tells; none where it tells none. */
    public static Optional<Instance> parse(String name) {
        Matcher parts = NODE.matcher(name);
        if (!parts.matches()) {
            return Optional.empty();
        }
        int port = Integer.parseInt(parts.group(4));
        String host = parts.group(3);
        boolean bracketed = host.length() > 2 && host.startsWith("[") && host.endsWith("]");
        try {
            long mark = Long.parseUnsignedLong(parts.group(2));
            Address address = new Address(bracketed ? host.substring(1, host.length() - 1) : host, port);
            boolean is = port > 0 && port <= PORT_MAX;
            return is ? Optional.of(new Instance(mark, parts.group(1), address)) : Optional.empty();
        } catch (NumberFormatException error) {
            return Optional.empty();
        }
    }
}
