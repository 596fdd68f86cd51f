package io.github.eskerstorage.scalardb;

import static com.scalar.db.config.ConfigUtils.getBoolean;
import static com.scalar.db.config.ConfigUtils.getLong;
import static com.scalar.db.config.ConfigUtils.getString;
import static com.scalar.db.config.ConfigUtils.getStringFromFilePath;

import com.scalar.db.config.DatabaseConfig;
import java.io.File;
import java.util.List;
import java.util.Optional;
import java.util.Properties;

/**
 * What the adapter reads from ScalarDB's properties.
 *
 * <table>
 *   <caption>Properties</caption>
 *   <tr><th>Property</th><th>Meaning, default</th></tr>
 *   <tr><td>scalar.db.contact_points</td><td>one HOST, HOST:PORT or [IPV6]:PORT; none</td></tr>
 *   <tr><td>scalar.db.contact_port</td><td>the port, if the contact point has none; {@value #DEFAULT_PORT}</td></tr>
 *   <tr><td>scalar.db.esker.token</td><td>sent as {@code authorization: Bearer TOKEN}; none</td></tr>
 *   <tr><td>scalar.db.esker.token_file</td><td>a file whose first line is the token; none</td></tr>
 *   <tr><td>scalar.db.esker.tls.enabled</td><td>TLS; false</td></tr>
 *   <tr><td>scalar.db.esker.tls.ca_file</td><td>authorities to trust, in PEM; those of the JVM</td></tr>
 *   <tr><td>scalar.db.esker.tls.cert_file, .key_file</td><td>the client's certificate and key, in PEM; none</td></tr>
 *   <tr><td>scalar.db.esker.tls.server_name</td><td>the name in the server's certificate; the host</td></tr>
 *   <tr><td>scalar.db.esker.timeout_ms</td><td>deadline of every call, from 1; a scan that gets on is given as much again;
 *       {@value #DEFAULT_TIMEOUT_MS}</td></tr>
 *   <tr><td>scalar.db.esker.reconnect_ms</td><td>a lost connection is tried anew by the first call after so long, from 10;
 *       {@value #DEFAULT_RECONNECT_MS}</td></tr>
 *   <tr><td>scalar.db.system_namespace_name</td><td>what ScalarDB calls its own namespace; scalardb</td></tr>
 * </table>
 */
final class EskerConfig {
  static final String STORAGE_NAME = "esker";
  static final String PREFIX = DatabaseConfig.PREFIX + STORAGE_NAME + ".";
  static final String TOKEN = PREFIX + "token";
  static final String TOKEN_FILE = PREFIX + "token_file";
  static final String TLS = PREFIX + "tls.enabled";
  static final String TLS_CA_FILE = PREFIX + "tls.ca_file";
  static final String TLS_CERT_FILE = PREFIX + "tls.cert_file";
  static final String TLS_KEY_FILE = PREFIX + "tls.key_file";
  static final String TLS_SERVER_NAME = PREFIX + "tls.server_name";
  static final String TIMEOUT_MS = PREFIX + "timeout_ms";
  static final String RECONNECT_MS = PREFIX + "reconnect_ms";
  static final String SYSTEM_NAMESPACE = DatabaseConfig.PREFIX + "system_namespace_name";
  static final int DEFAULT_PORT = 7400;
  static final long DEFAULT_TIMEOUT_MS = 60_000;
  static final long DEFAULT_RECONNECT_MS = 250;

  final String host;
  final int port;
  final Optional<String> token;
  final boolean tls;
  final Optional<File> caFile;
  final Optional<File> certFile;
  final Optional<File> keyFile;
  final Optional<String> serverName;
  final long timeoutMs;
  final long reconnectMs;
  final String systemNamespace;

  EskerConfig(DatabaseConfig config) {
    Properties properties = config.getProperties();
    List<String> points = config.getContactPoints();
    if (points.size() != 1) {
      throw invalid(
          DatabaseConfig.CONTACT_POINTS, points, "expected one HOST or HOST:PORT, as a store has one server");
    }
    String point = points.get(0).trim();
    if (point.contains("/")) {
      throw invalid(DatabaseConfig.CONTACT_POINTS, point, "expected HOST or HOST:PORT, not a URL or a path");
    }
    int colon = point.lastIndexOf(':');
    // An IPv6 address has a port only behind brackets.
    boolean bracketed = point.startsWith("[");
    boolean withPort = colon >= 0 && (bracketed ? point.charAt(colon - 1) == ']' : point.indexOf(':') == colon);
    String named = withPort ? point.substring(0, colon) : point;
    host = bracketed && named.endsWith("]") ? named.substring(1, named.length() - 1) : named;
    if (host.isEmpty()) {
      throw invalid(DatabaseConfig.CONTACT_POINTS, point, "the host is missing");
    }
    if (withPort) {
      port = port(point.substring(colon + 1), DatabaseConfig.CONTACT_POINTS, point);
    } else {
      port = config.getContactPort() == 0 ? DEFAULT_PORT : config.getContactPort();
    }

    String given = getString(properties, TOKEN, null);
    String read = getStringFromFilePath(properties, TOKEN_FILE, null);
    if (given != null && read != null) {
      throw invalid(TOKEN, "(not shown)", "give it or " + TOKEN_FILE + ", not both");
    }
    token = Optional.ofNullable(given == null && read != null ? read.lines().findFirst().orElse("").trim() : given);
    if (token.isPresent() && token.get().isEmpty()) {
      throw invalid(TOKEN_FILE, "(not shown)", "its first line is empty");
    }

    tls = getBoolean(properties, TLS, false);
    caFile = file(properties, TLS_CA_FILE);
    certFile = file(properties, TLS_CERT_FILE);
    keyFile = file(properties, TLS_KEY_FILE);
    serverName = Optional.ofNullable(getString(properties, TLS_SERVER_NAME, null));
    if (certFile.isPresent() != keyFile.isPresent()) {
      throw invalid(TLS_CERT_FILE, certFile, "a certificate and its key go together: give " + TLS_KEY_FILE + " as well");
    }
    if (!tls && (caFile.isPresent() || certFile.isPresent() || serverName.isPresent())) {
      throw invalid(TLS, false, "other tls properties are given, which need it to be true");
    }
    timeoutMs = getLong(properties, TIMEOUT_MS, DEFAULT_TIMEOUT_MS);
    if (timeoutMs < 1) {
      throw invalid(TIMEOUT_MS, timeoutMs, "expected at least 1");
    }
    reconnectMs = getLong(properties, RECONNECT_MS, DEFAULT_RECONNECT_MS);
    if (reconnectMs < 10) {
      throw invalid(RECONNECT_MS, reconnectMs, "expected at least 10");
    }
    systemNamespace = getString(properties, SYSTEM_NAMESPACE, DatabaseConfig.DEFAULT_SYSTEM_NAMESPACE_NAME);
  }

  private static int port(String text, String property, Object value) {
    try {
      int port = Integer.parseInt(text);
      if (port >= 1 && port <= 65_535) {
        return port;
      }
    } catch (NumberFormatException e) {
      // Said below.
    }
    throw invalid(property, value, "the port has to be a number from 1 to 65535");
  }

  private static Optional<File> file(Properties properties, String property) {
    Optional<File> file = Optional.ofNullable(getString(properties, property, null)).map(File::new);
    if (file.isPresent() && !file.get().canRead()) {
      throw invalid(property, file.get(), "this file cannot be read");
    }
    return file;
  }

  private static IllegalArgumentException invalid(String property, Object value, String why) {
    return new IllegalArgumentException(property + " = " + value + ": " + why);
  }
}
