/*
 * Esker's namespaces of keys by Thrift: `esker serve --thrift 127.0.0.1:9901 --thrift-namespace users:int`.
 *
 * ZDBService is, word for word, the service of Zing Database (T. T. Nguyen, M. H. Nguyen: "Zing Database:
 * high-performance key-value store for large-scale storage service", 2015, Listing 1). EskerKeys extends it.
 *
 * Protocols: binary (strict, and as it first was) and compact, each framed or unframed: the server finds out by the
 * first bytes of a connection. Over TLS where it has a certificate, from the first byte (TSSLSocket).
 *
 * Keys: of a namespace of int keys decimal numbers, 0 to 18446744073709551615, without leading zeros; else up to 4,024
 * bytes. Keys and values are strings of bytes: clients whose `string` is text (Python 3, Java) send and read UTF-8.
 *
 * Limits: a value has up to 16 MiB less 16 bytes (its header), what a multiPut writes 40 MiB together, a message 44
 * MiB, an answer 64 MiB, and so have the values of the keys of a removeMany; a call 4,096 keys, a page 1,000 pairs.
 * What a call writes also fits one segment of the store, with some KiB beside it (`esker format` tells how long
 * segments are; if nothing is said 8 MiB of a store of less than 2 GiB, 16 of less than 4 GiB, 32 of less than 8 GiB).
 * Clients have limits of their own: many refuse a frame or a string above 16,384,000 bytes if nothing else is said.
 * Lists of keys and pairs are lists: sets, maps and lists of other elements are a PROTOCOL_ERROR.
 *
 * Connections: one that has begun a call keeps its place (thrift_connections) until it is closed, idle or not. One
 * that has begun none is closed after 10 seconds: pools open them when they are needed. A server whose memory
 * (thrift_memory) others hold says so, and is to be asked again later.
 *
 * Several chains (esker serve --cluster, esker ring): each server answers for all keys, and asks the other chains for
 * theirs. What is all or none is so for the keys of one chain: int keys of one range of 65,536 always are, and byte keys
 * with one {tag}. Where slots of keys are going from chain to chain, or another chain has no head, a call waits for
 * that, ten seconds at most.
 *
 * Java: an AsyncClient takes every exception for its end, also that of a get whose key is missing: make another, or ask
 * by multiGet. A client that refuses a call itself (null in a pair or in a list) has written half of it: close it.
 *
 * Errors are TApplicationExceptions:
 *   0 UNKNOWN               what was asked for cannot be: a key that is no number (the message names it), a limit, what
 *                           the client's user may not do
 *   1 UNKNOWN_METHOD        there is no such method
 *   2 INVALID_MESSAGE_TYPE  the message is no call; then the connection closes
 *   6 INTERNAL_ERROR        the store's, with its message, such as that it is full; whether a write was done is said
 *                           there. Or the server has no memory or place for it now, and nothing was done
 *   7 PROTOCOL_ERROR        an argument is missing; or the message is malformed, and then the connection closes
 */

namespace py zdb
namespace java vn.zdb

typedef string KType
typedef string VType
typedef VType ValueType
typedef list<KType> KeyList

struct DataType {
  1: required KType key,
  2: required VType value,
}

typedef list<DataType> DataList

service ZDBService {
  /* The value. Where the key is missing the answer holds none, so that clients raise MISSING_RESULT (5). */
  ValueType get(1: KType key),

  /* The pairs that are there, in the order in which they were asked for; those that are missing are left out. */
  DataList multiGet(1: KeyList keys),

  /* 0; 1 where there was no such key. */
  i32 remove(1: KType key),

  /* 0. */
  i32 put(1: KType key, 2: VType value),

  /* All or none, of the keys of one chain; of a key that is given twice the last counts. */
  void multiPut(1: DataList data),

  bool has(1: KType key),
}

/* When a write is acknowledged. */
enum Mode {
  /* When it survives a power cut. */
  SAFE = 1,
  /* When it is applied: a crash, or the loss of a chain's head, may take the last writes back. What it takes is the end
     of what was acknowledged, no more than the server's setting thrift_async_bytes (64 MiB; keys and values, and 64
     bytes for each key), and none of it was acknowledged longer than thrift_async_age (2 s) before the last that was. A
     write waits while that would not hold, and one that is larger by itself is acknowledged as in SAFE. */
  ASYNCHRONOUS = 2,
}

struct Page {
  1: required DataList data,
  /* Where the next page begins; not there at the end. A page may be empty and yet not be the last. */
  2: optional binary cursor,
}

service EskerKeys extends ZDBService {
  /* Writes a value if the key is absent, and says whether it did. */
  bool add(1: KType key, 2: VType value),

  /* Writes a value if the key is present, and says whether it did. */
  bool update(1: KType key, 2: VType value),

  /* Writes a value if that which is there is `expected`, and says whether it did. Clients that can leave an argument out
     (Python: None, Java: null) ask so for the key to be absent; others have add. */
  bool compareAndSet(1: KType key, 2: VType expected, 3: VType value),

  /* Removes all of these that are there, or none, of the keys of one chain, and says how many there were. */
  i64 removeMany(1: KeyList keys),

  /* A page of pairs in the order of keys, of at most `limit` (1 to 1,000; 0: 100), which also ends when it holds 4 MiB.
     The first begins with an empty cursor, the next with that of the page before. */
  Page iterate(1: binary cursor, 2: i32 limit),

  /* The same in the order in which they were last written, those of one multiPut in the order of the call, a key that
     it names twice where it names it first. What is written meanwhile comes again, later. A cursor of it is good while the server runs, one of iterate for ever. Not
     where the server is one of a chain. */
  Page iterateInserted(1: binary cursor, 2: i32 limit),

  /* How many keys there are, with those that have expired, or gone to another chain, and were not removed yet. */
  i64 count(),

  /* When writes that come from now on are acknowledged, of all clients of this service. setMode(SAFE) counts at once,
     and is answered when all is durable that was acknowledged before: from its answer on no crash takes anything back.
     Where that cannot be had it is an error, and the mode is SAFE all the same. The server's setting (thrift_mode)
     counts again when it is started anew. In a chain it is each server's own: one that becomes head goes by its own
     setting, or by what was set on it before. Of several chains it is set at the head of each, also of those
     that share the keys and have none now; one that joins them later goes by its own setting. With users: for
     operators. */
  Mode mode(),
  void setMode(1: Mode mode),
}
