import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/** Stands before a server, counts calls in frames, and loses answers if it is told to. */
final class Relay implements AutoCloseable {
    private static final int FRAME_BYTES_MAX = 1 << 20;

    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final int to;
    private final Thread accepting;
    private final AtomicInteger calls = new AtomicInteger();
    private final Set<Socket> open = ConcurrentHashMap.newKeySet();
    private volatile boolean loses;

    Relay(int to) throws IOException {
        this.to = to;
        accepting = new Thread(this::accept, "relay");
        accepting.start();
    }

    int port() {
        return listener.getLocalPort();
    }

    /** How many calls came since this was last asked. */
    int calls() {
        return calls.getAndSet(0);
    }

    /** From now on calls are done, and the connection is closed instead of an answer; or they are answered again. */
    void loses(boolean does) {
        loses = does;
    }

    private void accept() {
        try {
            while (true) {
                Socket client = listener.accept();
                open.add(client);
                new Thread(() -> relay(client), "relay of a connection").start();
            }
        } catch (IOException error) {
            // It is closed.
            open.forEach(Relay::end);
        }
    }

    private void relay(Socket client) {
        try (client; Socket server = new Socket(InetAddress.getLoopbackAddress(), to)) {
            DataInputStream asked = new DataInputStream(client.getInputStream());
            DataInputStream answered = new DataInputStream(server.getInputStream());
            DataOutputStream back = new DataOutputStream(client.getOutputStream());
            DataOutputStream on = new DataOutputStream(server.getOutputStream());
            while (true) {
                byte[] call = frame(asked);
                calls.incrementAndGet();
                pass(call, on);
                byte[] answer = frame(answered);
                if (loses) {
                    return;
                }
                pass(answer, back);
            }
        } catch (IOException error) {
            // One of the two has gone.
            open.remove(client);
        }
    }

    private static byte[] frame(DataInputStream from) throws IOException {
        int len = from.readInt();
        if (len < 0 || len > FRAME_BYTES_MAX) {
            throw new EOFException("a frame of " + len + " bytes");
        }
        return from.readNBytes(len);
    }

    private static void pass(byte[] frame, DataOutputStream to) throws IOException {
        to.writeInt(frame.length);
        to.write(frame);
        to.flush();
    }

    private static void end(Socket socket) {
        try {
            socket.close();
        } catch (IOException error) {
            throw new AssertionError(error);
        }
    }

    @Override
    public void close() throws IOException {
        listener.close();
        try {
            // Until then the system may still take connections.
            accepting.join();
        } catch (InterruptedException error) {
            throw new AssertionError(error);
        }
        open.forEach(Relay::end);
    }
}
