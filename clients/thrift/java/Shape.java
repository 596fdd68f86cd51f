import java.util.ArrayList;
import java.util.List;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.protocol.TCompactProtocol;
import org.apache.thrift.protocol.TProtocolFactory;

/** How a client speaks: a protocol, and the way in which its messages come. */
record Shape(String protocolName, TProtocolFactory protocol, Way way) {
    /** Generated clients: Client, unframed or framed, which waits for answers; AsyncClient, framed, with callbacks. */
    enum Way { UNFRAMED, FRAMED, CALLBACKS }

    /** All that there are. */
    static final List<Shape> ALL = all();
    static final Shape DEFAULT = ALL.get(0);

    private static List<Shape> all() {
        List<Shape> shapes = new ArrayList<>();
        for (Way way : Way.values()) {
            shapes.add(new Shape("binary", new TBinaryProtocol.Factory(true, true), way));
            shapes.add(new Shape("old binary", new TBinaryProtocol.Factory(false, false), way));
            shapes.add(new Shape("compact", new TCompactProtocol.Factory(), way));
        }
        return List.copyOf(shapes);
    }

    boolean waits() {
        return way != Way.CALLBACKS;
    }

    @Override
    public String toString() {
        return way.name().toLowerCase() + " " + protocolName;
    }
}
