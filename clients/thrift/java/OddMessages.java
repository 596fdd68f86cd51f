import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.TException;
import org.apache.thrift.protocol.TField;
import org.apache.thrift.protocol.TList;
import org.apache.thrift.protocol.TMessageType;
import org.apache.thrift.protocol.TProtocol;
import org.apache.thrift.protocol.TProtocolUtil;
import org.apache.thrift.protocol.TSet;
import org.apache.thrift.protocol.TStruct;
import org.apache.thrift.protocol.TType;

/** Messages that no generated client sends, in every shape of a client that waits. */
final class OddMessages {
    private OddMessages() {}

    static void areAnsweredByWhatIsWrong(Path folder, Shape shape) throws Exception {
        try (Server server = new Server(folder); Connection connection = new Connection(server, shape)) {
            Connection.Fields<Object> nothing = protocol -> null;
            Connection.Fields<Object> passed = OddMessages::pass;
            // Keys and values are bytes, and need not be UTF-8: a Java client reads and writes them as binary.
            byte[] key = {0, (byte) 0xff, (byte) 0xc3, 0x28};
            byte[] value = {(byte) 0x80, 0, (byte) 0xfe};
            Check.equal(0, connection.ask("put", -7, protocol -> {
                binary(protocol, 1, key);
                return binary(protocol, 2, value);
            }, OddMessages::number));
            int number = Integer.MAX_VALUE;
            Check.equal(value, connection.ask("get", number, protocol -> binary(protocol, 1, key), OddMessages::bytes));
            int unknown = TApplicationException.UNKNOWN_METHOD;
            Check.refused(unknown, "\"increment\"", () -> connection.ask("increment", 5, nothing, passed));
            Check.refused(unknown, "\"\"", () -> connection.ask("", 5, nothing, passed));
            int wrong = TApplicationException.PROTOCOL_ERROR;
            // A number where a key is to be, a set, a list of numbers, and a pair without a value.
            Check.refused(wrong, "get: field 1 (key)", () -> connection.ask("get", 6, protocol -> {
                protocol.writeFieldBegin(new TField("key", TType.I64, (short) 1));
                protocol.writeI64(7);
                protocol.writeFieldEnd();
                return null;
            }, passed));
            Check.refused(wrong, "multiGet: field 1 (keys)", () -> connection.ask("multiGet", 6, protocol -> {
                protocol.writeFieldBegin(new TField("keys", TType.SET, (short) 1));
                protocol.writeSetBegin(new TSet(TType.STRING, 1));
                protocol.writeString("k");
                protocol.writeSetEnd();
                protocol.writeFieldEnd();
                return null;
            }, passed));
            Check.refused(wrong, "removeMany: field 1 (keys)", () -> connection.ask("removeMany", 6, protocol -> {
                protocol.writeFieldBegin(new TField("keys", TType.LIST, (short) 1));
                protocol.writeListBegin(new TList(TType.I32, 2));
                protocol.writeI32(1);
                protocol.writeI32(2);
                protocol.writeListEnd();
                protocol.writeFieldEnd();
                return null;
            }, passed));
            Check.refused(wrong, "without key or value", () -> connection.ask("multiPut", 6, protocol -> {
                protocol.writeFieldBegin(new TField("data", TType.LIST, (short) 1));
                protocol.writeListBegin(new TList(TType.STRUCT, 1));
                protocol.writeStructBegin(new TStruct("DataType"));
                binary(protocol, 1, key);
                protocol.writeFieldStop();
                protocol.writeStructEnd();
                protocol.writeListEnd();
                protocol.writeFieldEnd();
                return null;
            }, passed));
            Check.refused(TApplicationException.UNKNOWN, "mode 3", () -> connection.ask("setMode", 6, protocol -> {
                protocol.writeFieldBegin(new TField("mode", TType.I32, (short) 1));
                protocol.writeI32(3);
                protocol.writeFieldEnd();
                return null;
            }, passed));
            // Fields that a method does not have are passed over.
            Check.equal(1, connection.ask("remove", 8, protocol -> {
                binary(protocol, 9, value);
                return binary(protocol, 1, value);
            }, OddMessages::number));
            // A call that is not to be answered is done, and not answered.
            connection.send(TMessageType.ONEWAY, "put", 9, protocol -> {
                binary(protocol, 1, "oneway".getBytes(StandardCharsets.UTF_8));
                return binary(protocol, 2, "done".getBytes(StandardCharsets.UTF_8));
            });
            Check.equal("done", connection.keys.get("oneway"));
            Check.equal(2L, connection.keys.count());
            // What is no call ends the connection.
            connection.send(TMessageType.REPLY, "get", 10, nothing);
            int kind = TApplicationException.INVALID_MESSAGE_TYPE;
            Check.refused(kind, "no call", () -> connection.receive("get", 10, passed));
            Check.closed(() -> connection.keys.has("k"));
        }
    }

    private static Object binary(TProtocol protocol, int field, byte[] bytes) throws TException {
        protocol.writeFieldBegin(new TField("", TType.STRING, (short) field));
        protocol.writeBinary(ByteBuffer.wrap(bytes));
        protocol.writeFieldEnd();
        return null;
    }

    /** A result that is a number. */
    private static Integer number(TProtocol protocol) throws TException {
        return result(protocol, TType.I32, TProtocol::readI32);
    }

    /** A result that is a string of bytes. */
    private static byte[] bytes(TProtocol protocol) throws TException {
        return result(protocol, TType.STRING, from -> {
            ByteBuffer read = from.readBinary();
            byte[] bytes = new byte[read.remaining()];
            read.get(bytes);
            return bytes;
        });
    }

    /** A result is a struct with one field, 0. */
    private static <T> T result(TProtocol protocol, byte type, Connection.Fields<T> value) throws TException {
        protocol.readStructBegin();
        TField field = protocol.readFieldBegin();
        Check.equal(type, field.type);
        Check.equal((short) 0, field.id);
        T read = value.of(protocol);
        protocol.readFieldEnd();
        Check.equal(TType.STOP, protocol.readFieldBegin().type);
        protocol.readStructEnd();
        return read;
    }

    private static Object pass(TProtocol protocol) throws TException {
        TProtocolUtil.skip(protocol, TType.STRUCT);
        return null;
    }
}
