// Does what a list of rows says with Jedis, and tells what each answer was. See ../../../../README.md.

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
import org.json.JSONArray;
import org.json.JSONObject;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.BuilderFactory;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.CommandObject;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

public final class JedisClient {
    private static final char[] NO_PASSWORD = {};

    public static void main(String[] arguments) throws Exception {
        JSONArray told = new JSONArray();
        JSONArray rows = new JSONArray(new String(System.in.readAllBytes(), StandardCharsets.UTF_8));
        for (int at = 0; at < rows.length(); at++) {
            told.put(new JSONArray(answers(rows.getJSONObject(at))));
        }
        System.out.println(told);
    }

    private static List<String> answers(JSONObject row) throws Exception {
        DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder()
            .protocol(row.getInt("protocol") == 3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2)
            .timeoutMillis(20_000)
            .user(row.optString("user", null))
            .password(row.optString("password", null));
        if (row.getBoolean("tls")) {
            config.ssl(true).sslSocketFactory(sockets(row));
        }
        HostAndPort address = new HostAndPort("127.0.0.1", row.getInt("port"));
        List<String> told = new ArrayList<>();
        try (RedisClient client = RedisClient.builder().hostAndPort(address).clientConfig(config.build()).build()) {
            JSONArray steps = row.getJSONArray("steps");
            for (int at = 0; at < steps.length(); at++) {
                String how = steps.getJSONArray(at).getString(0);
                List<CommandObject<Object>> commands = commands(steps.getJSONArray(at).getJSONArray(1));
                switch (how) {
                    case "call" -> commands.forEach(command -> told.add(answer(() -> client.executeCommand(command))));
                    case "pipeline" -> told.addAll(pipeline(client, commands));
                    default -> told.addAll(transaction(client, commands));
                }
            }
        } catch (JedisConnectionException error) {
            return List.of("no connection");
        } catch (JedisException error) {
            return List.of(refusal(error));
        }
        return told;
    }

    /** What the server said, which may stand behind what the pool of connections says. */
    private static String refusal(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof JedisDataException) {
                return cause.getMessage();
            }
        }
        return "no connection";
    }

    private static List<String> pipeline(RedisClient client, List<CommandObject<Object>> commands) {
        try (AbstractPipeline pipeline = client.pipelined()) {
            List<Response<Object>> responses = commands.stream().map(pipeline::executeCommand).toList();
            pipeline.sync();
            return responses.stream().map(response -> answer(response::get)).collect(Collectors.toList());
        }
    }

    private static List<String> transaction(RedisClient client, List<CommandObject<Object>> commands) {
        try (AbstractTransaction transaction = client.multi()) {
            commands.forEach(transaction::executeCommand);
            return transaction.exec().stream().map(JedisClient::text).collect(Collectors.toList());
        } catch (JedisDataException error) {
            return List.of(error.getMessage());
        }
    }

    private interface Call {
        Object run();
    }

    private static String answer(Call call) {
        try {
            return text(call.run());
        } catch (JedisDataException error) {
            return error.getMessage();
        }
    }

    private static List<CommandObject<Object>> commands(JSONArray written) {
        List<CommandObject<Object>> commands = new ArrayList<>();
        for (int at = 0; at < written.length(); at++) {
            List<Object> words = written.getJSONArray(at).toList();
            ProtocolCommand name = () -> words.get(0).toString().getBytes(StandardCharsets.UTF_8);
            CommandArguments arguments = new CommandArguments(name);
            words.stream().skip(1).forEach(word -> arguments.add(word.toString()));
            commands.add(new CommandObject<>(arguments, BuilderFactory.RAW_OBJECT));
        }
        return commands;
    }

    /** An answer as all clients here show it. */
    private static String text(Object answer) {
        if (answer instanceof byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
        if (answer instanceof Throwable error) {
            return error.getMessage();
        }
        if (answer instanceof Map.Entry<?, ?> pair) {
            return text(pair.getKey()) + ", " + text(pair.getValue());
        }
        if (answer instanceof List<?> list) {
            return list.stream().map(JedisClient::text).collect(Collectors.joining(", ", "[", "]"));
        }
        return answer == null ? "nil" : answer.toString();
    }

    private static SSLSocketFactory sockets(JSONObject row) throws Exception {
        KeyStore known = KeyStore.getInstance(KeyStore.getDefaultType());
        known.load(null, null);
        known.setCertificateEntry("authority", certificate(row.getString("ca")));
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(known);
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        KeyStore own = KeyStore.getInstance(KeyStore.getDefaultType());
        own.load(null, null);
        if (!row.isNull("cert")) {
            Certificate[] chain = {certificate(row.getString("cert"))};
            own.setKeyEntry("own", key(row.getString("key")), NO_PASSWORD, chain);
        }
        keys.init(own, NO_PASSWORD);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context.getSocketFactory();
    }

    private static Certificate certificate(String file) throws Exception {
        try (var text = Files.newInputStream(Path.of(file))) {
            return CertificateFactory.getInstance("X.509").generateCertificate(text);
        }
    }

    private static PrivateKey key(String file) throws Exception {
        ByteArrayOutputStream digits = new ByteArrayOutputStream();
        for (String line : Files.readAllLines(Path.of(file))) {
            if (!line.startsWith("-----")) {
                digits.writeBytes(line.getBytes(StandardCharsets.US_ASCII));
            }
        }
        return KeyFactory.getInstance("EC").generatePrivate(
            new PKCS8EncodedKeySpec(Base64.getDecoder().decode(digits.toByteArray())));
    }
}
