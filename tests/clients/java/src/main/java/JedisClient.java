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
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
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
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.util.JedisClusterCRC16;

public final class JedisClient {
    private static final char[] NO_PASSWORD = {};
    /** It waits between its attempts for up to as long as this: longer than the lease of a head, which is 3 s. */
    private static final Duration RETRIES_MAX = Duration.ofSeconds(5);

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
            .user(row.optString("user", null))
            .password(row.optString("password", null));
        boolean cluster = row.getBoolean("cluster");
        if (!cluster) {
            // A client of a cluster connects again and again to a head that is gone: there it is the library's.
            config.timeoutMillis(20_000);
        }
        if (row.getBoolean("tls")) {
            config.ssl(true).sslSocketFactory(sockets(row));
        }
        HostAndPort address = new HostAndPort("127.0.0.1", row.getInt("port"));
        List<String> told = new ArrayList<>();
        try (UnifiedJedis client = cluster
                ? RedisClusterClient.builder().nodes(Set.of(address)).clientConfig(config.build())
                    .maxTotalRetriesDuration(RETRIES_MAX).build()
                : RedisClient.builder().hostAndPort(address).clientConfig(config.build()).build()) {
            JSONArray steps = row.getJSONArray("steps");
            for (int at = 0; at < steps.length(); at++) {
                String how = steps.getJSONArray(at).getString(0);
                JSONArray written = steps.getJSONArray(at).getJSONArray(1);
                List<CommandObject<Object>> commands = commands(written, cluster);
                List<Object> words = written.getJSONArray(0).toList();
                switch (how) {
                    case "call" -> commands.forEach(command -> told.add(answer(() -> client.executeCommand(command))));
                    case "scan" -> scan(client, words.get(0).toString()).stream().sorted().forEach(told::add);
                    case "writes" -> told.addAll(writes(client, words.get(0).toString(), words.get(1).toString()));
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

    private static List<String> scan(UnifiedJedis client, String pattern) {
        if (!(client instanceof RedisClusterClient cluster)) {
            return List.copyOf(client.scanIteration(100, pattern).collect(new ArrayList<>()));
        }
        // A walk of its own goes to all nodes: Redis's replicas would tell each key once more. The keys that are looked for
        // have a tag, and so are of one slot.
        List<String> found = new ArrayList<>();
        try (Jedis head = new Jedis(cluster.getConnectionFromSlot(JedisClusterCRC16.getSlot(pattern)))) {
            ScanParams wanted = new ScanParams().match(pattern).count(100);
            String cursor = ScanParams.SCAN_POINTER_START;
            do {
                ScanResult<String> page = head.scan(cursor, wanted);
                found.addAll(page.getResult());
                cursor = page.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        }
        return found;
    }

    /** Writes for so long and reads back what was acknowledged; see the README for the answers. */
    private static List<String> writes(UnifiedJedis client, String prefix, String seconds) throws InterruptedException {
        long acknowledged = System.nanoTime();
        long until = acknowledged + (long) (Double.parseDouble(seconds) * 1e9);
        List<Integer> kept = new ArrayList<>();
        List<Long> failures = new ArrayList<>();
        long pause = 0;
        String failed = "";
        for (int number = 0; System.nanoTime() < until; number++) {
            try {
                client.set(prefix + ":" + number, Integer.toString(number));
                kept.add(number);
                pause = Math.max(pause, System.nanoTime() - acknowledged);
                acknowledged = System.nanoTime();
            } catch (JedisException error) {
                failures.add(System.nanoTime());
                failed = error.toString();
                Thread.sleep(20);
            }
        }
        long missing = kept.stream()
            .filter(number -> !Integer.toString(number).equals(client.get(prefix + ":" + number))).count();
        long span = failures.isEmpty() ? 0 : failures.get(failures.size() - 1) - failures.get(0);
        return List.of(Integer.toString(kept.size()), Integer.toString(failures.size()),
            Long.toString(span / 1_000_000), Long.toString(pause / 1_000_000), Long.toString(missing), failed);
    }

    private static List<String> pipeline(UnifiedJedis client, List<CommandObject<Object>> commands) {
        try (AbstractPipeline pipeline = client.pipelined()) {
            List<Response<Object>> responses = commands.stream().map(pipeline::executeCommand).toList();
            pipeline.sync();
            return responses.stream().map(response -> answer(response::get)).collect(Collectors.toList());
        }
    }

    private static List<String> transaction(UnifiedJedis client, List<CommandObject<Object>> commands) {
        try (AbstractTransaction transaction = begin(client, commands.get(0))) {
            commands.forEach(transaction::executeCommand);
            return transaction.exec().stream().map(JedisClient::text).collect(Collectors.toList());
        } catch (JedisDataException error) {
            return List.of(error.getMessage());
        }
    }

    /** A client of a cluster has no transactions of its own: they are made on the connection of their slot. */
    private static AbstractTransaction begin(UnifiedJedis client, CommandObject<Object> first) {
        if (client instanceof RedisClusterClient cluster) {
            int slot = first.getArguments().getKeyHashSlots().iterator().next();
            return new Transaction(cluster.getConnectionFromSlot(slot), true, true);
        }
        return client.multi();
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

    private static List<CommandObject<Object>> commands(JSONArray written, boolean cluster) {
        List<CommandObject<Object>> commands = new ArrayList<>();
        for (int at = 0; at < written.length(); at++) {
            List<Object> words = written.getJSONArray(at).toList();
            ProtocolCommand name = () -> words.get(0).toString().getBytes(StandardCharsets.UTF_8);
            CommandArguments arguments = new CommandArguments(name);
            for (int place = 1; place < words.size(); place++) {
                // Where a command goes in a cluster is chosen by its key.
                if (cluster && place == 1) {
                    arguments.key(words.get(place).toString());
                } else {
                    arguments.add(words.get(place).toString());
                }
            }
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
