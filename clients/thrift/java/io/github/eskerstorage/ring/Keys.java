package io.github.eskerstorage.ring;

import java.nio.charset.StandardCharsets;

/** What the keys of a namespace are, which says how they are spread over the ring. */
public enum Keys {
    /** Decimal numbers, 0 to 18446744073709551615 without leading zeros: spread by range, marked by a key. */
    INTS {
        @Override
        long placeOf(String key) {
            boolean digits = !key.isEmpty() && key.chars().allMatch(letter -> letter >= '0' && letter <= '9');
            boolean zeros = key.length() > 1 && key.startsWith("0");
            try {
                if (digits && !zeros) {
                    return Long.parseUnsignedLong(key) & ((long) SLOTS * RANGE_KEYS - 1);
                }
            } catch (NumberFormatException error) {
                // It is larger than the largest, which is said below.
            }
            String limit = "a decimal number up to 18446744073709551615 without leading zeros";
            throw new IllegalArgumentException("key \"" + key + "\": expected " + limit);
        }
    },

    /** Any text, sent in UTF-8: spread by hash as in Redis Cluster, marked by a slot. */
    BYTES {
        @Override
        long placeOf(String key) {
            byte[] bytes = key.getBytes(StandardCharsets.UTF_8);
            int begin = find(bytes, '{', 0);
            int end = begin < bytes.length ? find(bytes, '}', begin + 1) : bytes.length;
            boolean tagged = end < bytes.length && end > begin + 1;
            return (tagged ? crc16(bytes, begin + 1, end) : crc16(bytes, 0, bytes.length)) % SLOTS;
        }
    };

    /** Slots that keys are spread over. */
    public static final int SLOTS = 16_384;
    /** Int keys that follow each other and are of one slot. */
    public static final int RANGE_KEYS = 65_536;

    private static final int POLYNOMIAL = 0x1021;

    /** Where a key is on the ring: an instance has the places below its mark. */
    abstract long placeOf(String key);

    private static int find(byte[] bytes, char wanted, int from) {
        int at = from;
        while (at < bytes.length && bytes[at] != wanted) {
            at++;
        }
        return at;
    }

    /** CRC-16/XMODEM. */
    private static int crc16(byte[] bytes, int begin, int end) {
        int crc = 0;
        for (int at = begin; at < end; at++) {
            crc ^= (bytes[at] & 0xff) << 8;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc << 1 ^ ((crc & 0x8000) == 0 ? 0 : POLYNOMIAL)) & 0xffff;
            }
        }
        return crc;
    }
}
