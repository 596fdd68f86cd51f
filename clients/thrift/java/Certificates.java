import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import org.apache.thrift.transport.TSSLTransportFactory;
import org.apache.thrift.transport.TSSLTransportFactory.TSSLTransportParameters;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.TTransportException;

/** An authority and certificates of it, in a folder: as PEM for a server, and as stores of keys for Java. */
final class Certificates {
    private static final String PASSWORD = "of no use but here";
    private final Path folder;

    Certificates(Path folder) throws IOException, GeneralSecurityException {
        this.folder = folder;
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
            "/CN=authority", "-addext", "keyUsage=critical,keyCertSign", "-keyout", "ca-key.pem", "-out", "ca.pem");
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        try (InputStream file = Files.newInputStream(folder.resolve("ca.pem"))) {
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        try (OutputStream file = Files.newOutputStream(folder.resolve("ca.p12"))) {
            trusted.store(file, PASSWORD.toCharArray());
        }
    }

    /** Issues NAME.pem with NAME-key.pem, and NAME.p12 with both. */
    void issue(String name) throws IOException {
        Files.writeString(folder.resolve(name + ".extensions"), "subjectAltName=DNS:" + name + ",IP:127.0.0.1\n");
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=" + name,
            "-keyout", name + "-key.pem", "-out", name + ".request");
        openssl("x509", "-req", "-in", name + ".request", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-days", "2",
            "-CAcreateserial", "-extfile", name + ".extensions", "-out", name + ".pem");
        openssl("pkcs12", "-export", "-in", name + ".pem", "-inkey", name + "-key.pem", "-out", name + ".p12",
            "-passout", "pass:" + PASSWORD);
    }

    /** A connection over TLS that shows the certificate of this name; none without a name. */
    TTransport connect(Server server, String name) throws TTransportException {
        TSSLTransportParameters parameters = new TSSLTransportParameters();
        parameters.setTrustStore(folder.resolve("ca.p12").toString(), PASSWORD, null, "PKCS12");
        if (name != null) {
            parameters.setKeyStore(folder.resolve(name + ".p12").toString(), PASSWORD, null, "PKCS12");
        }
        return TSSLTransportFactory.getClientSocket("127.0.0.1", server.port(), Connection.ANSWER_MS_MAX, parameters);
    }

    private void openssl(String... words) throws IOException {
        List<String> command = new ArrayList<>(List.of("openssl"));
        command.addAll(List.of(words));
        ProcessBuilder builder = new ProcessBuilder(command).directory(folder.toFile()).redirectErrorStream(true);
        Process process = builder.start();
        process.getOutputStream().close();
        String printed = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        try {
            if (process.waitFor() != 0) {
                throw new IOException(String.join(" ", command) + ": " + printed);
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException(error);
        }
    }
}
