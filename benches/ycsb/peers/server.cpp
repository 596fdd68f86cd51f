// LevelDB and Kyoto Cabinet's HashDB behind ZDBService, as in the paper of Zing Database: a process for one store.
//
//   server leveldb|kyoto FOLDER PORT CACHE_BYTES RECORDS asynchronous|safe
//
// connection (a thread) → Thrift's generated processor → Service → Store
//
// Invariants:
// 1. Safe: a write is answered when the store has synced it. Asynchronous: when the store has taken it.
// 2. Keys are decimal numbers, as in a namespace of int keys of Esker, and are stored as eight bytes in their order.
// 3. SIGTERM and SIGINT close the store.

#include <charconv>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <kchashdb.h>
#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/filter_policy.h>
#include <leveldb/write_batch.h>
#include <thrift/TApplicationException.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/server/TThreadedServer.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerSocket.h>

#include "ZDBService.h"

namespace {

using apache::thrift::TApplicationException;
using std::string;

// A record, its key and the message around them, so that a call costs one read and one write.
constexpr uint32_t BUFFER_BYTES = 64 << 10;

struct Settings {
    string folder;
    uint64_t cache_bytes;
    uint64_t records;
    bool safe;
};

// What a store does. Keys are packed. Errors are thrown, and become TApplicationExceptions with their text.
class Store {
public:
    virtual ~Store() = default;
    virtual bool get(const string& key, string& value) = 0;
    virtual void put(const string& key, const string& value) = 0;
    virtual bool remove(const string& key) = 0;
    virtual void put_all(const DataList& pairs) = 0;
    virtual bool has(const string& key) = 0;
};

string packed(const string& key) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc() || end != key.data() + key.size() || (key.size() > 1 && key[0] == '0')) {
        throw std::runtime_error("the key '" + key.substr(0, 40) + "' is no number");
    }
    string bytes(8, '\0');
    for (int at = 7; at >= 0; at--, number >>= 8) bytes[at] = static_cast<char>(number);
    return bytes;
}

class LevelDb : public Store {
public:
    explicit LevelDb(const Settings& settings)
        : cache_(leveldb::NewLRUCache(settings.cache_bytes)), filter_(leveldb::NewBloomFilterPolicy(10)) {
        leveldb::Options options;
        options.create_if_missing = true;
        options.write_buffer_size = 64 << 20;
        options.max_open_files = 5000;
        options.block_cache = cache_.get();
        options.filter_policy = filter_.get();
        options.compression = leveldb::kNoCompression;
        write_.sync = settings.safe;
        leveldb::DB* db = nullptr;
        check(leveldb::DB::Open(options, settings.folder, &db));
        db_.reset(db);
    }

    bool get(const string& key, string& value) override { return found(db_->Get({}, key, &value)); }
    void put(const string& key, const string& value) override { check(db_->Put(write_, key, value)); }
    bool has(const string& key) override {
        string value;
        return get(key, value);
    }

    bool remove(const string& key) override {
        const bool there = has(key);
        check(db_->Delete(write_, key));
        return there;
    }

    void put_all(const DataList& pairs) override {
        leveldb::WriteBatch batch;
        for (const auto& pair : pairs) batch.Put(packed(pair.key), pair.value);
        check(db_->Write(write_, &batch));
    }

private:
    static void check(const leveldb::Status& status) {
        if (!status.ok()) throw std::runtime_error(status.ToString());
    }
    static bool found(const leveldb::Status& status) {
        if (status.IsNotFound()) return false;
        check(status);
        return true;
    }

    // Before the database, which uses them until it is closed.
    std::unique_ptr<leveldb::Cache> cache_;
    std::unique_ptr<const leveldb::FilterPolicy> filter_;
    leveldb::WriteOptions write_;
    std::unique_ptr<leveldb::DB> db_;
};

class Kyoto : public Store {
public:
    explicit Kyoto(const Settings& settings) {
        // Two buckets for each record, and all of the file mapped that the cache's bytes allow.
        db_.tune_buckets(static_cast<int64_t>(2 * settings.records));
        db_.tune_map(static_cast<int64_t>(settings.cache_bytes));
        uint32_t mode = Db::OWRITER | Db::OCREATE;
        if (settings.safe) mode |= Db::OAUTOSYNC;
        check(db_.open(settings.folder + "/records.kch", mode));
    }
    ~Kyoto() override {
        if (!db_.close()) std::cerr << "closing: " << db_.error().message() << std::endl;
    }

    bool get(const string& key, string& value) override { return found(db_.get(key, &value)); }
    void put(const string& key, const string& value) override { check(db_.set(key, value)); }
    bool has(const string& key) override { return found(db_.check(key.data(), key.size()) >= 0); }
    bool remove(const string& key) override { return found(db_.remove(key)); }

    void put_all(const DataList& pairs) override {
        std::map<string, string> records;
        for (const auto& pair : pairs) records[packed(pair.key)] = pair.value;
        check(db_.set_bulk(records, true) == static_cast<int64_t>(records.size()));
    }

private:
    using Db = kyotocabinet::HashDB;

    void check(bool done) {
        if (!done) throw std::runtime_error(db_.error().message());
    }
    bool found(bool done) {
        if (!done && db_.error().code() == kyotocabinet::BasicDB::Error::NOREC) return false;
        check(done);
        return true;
    }

    Db db_;
};

class Service : public ZDBServiceIf {
public:
    explicit Service(std::unique_ptr<Store> store) : store_(std::move(store)) {}

    void get(ValueType& value, const KType& key) override {
        if (!store_->get(packed(key), value)) {
            throw TApplicationException(TApplicationException::MISSING_RESULT, "there is no key " + key);
        }
    }
    void multiGet(DataList& pairs, const KeyList& keys) override {
        for (const auto& key : keys) {
            DataType pair;
            pair.key = key;
            if (store_->get(packed(key), pair.value)) pairs.push_back(std::move(pair));
        }
    }
    int32_t remove(const KType& key) override { return store_->remove(packed(key)) ? 0 : 1; }
    int32_t put(const KType& key, const VType& value) override {
        store_->put(packed(key), value);
        return 0;
    }
    void multiPut(const DataList& data) override { store_->put_all(data); }
    bool has(const KType& key) override { return store_->has(packed(key)); }

private:
    std::unique_ptr<Store> store_;
};

// Thrift counts what is read from a buffered connection against the largest size of one message, and never begins anew:
// after 100 MB it would end the connection.
class Messages : public apache::thrift::transport::TBufferedTransport {
public:
    using TBufferedTransport::TBufferedTransport;
    uint32_t readEnd() override {
        resetConsumedMessageSize();
        return TBufferedTransport::readEnd();
    }
};

class Buffered : public apache::thrift::transport::TTransportFactory {
    using Transport = apache::thrift::transport::TTransport;

public:
    std::shared_ptr<Transport> getTransport(std::shared_ptr<Transport> below) override {
        return std::make_shared<Messages>(below, BUFFER_BYTES);
    }
};

void serve(const string& kind, int port, const Settings& settings) {
    std::filesystem::create_directories(settings.folder);
    std::unique_ptr<Store> store;
    if (kind == "leveldb") store = std::make_unique<LevelDb>(settings);
    else if (kind == "kyoto") store = std::make_unique<Kyoto>(settings);
    else throw std::runtime_error("there is no store '" + kind + "'");

    auto service = std::make_shared<Service>(std::move(store));
    auto socket = std::make_shared<apache::thrift::transport::TServerSocket>("127.0.0.1", port);
    apache::thrift::server::TThreadedServer server(
        std::make_shared<ZDBServiceProcessor>(service), socket, std::make_shared<Buffered>(),
        std::make_shared<apache::thrift::protocol::TBinaryProtocolFactory>());

    // Blocked in all threads, which begin later, and waited for by one of them.
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr);
    std::thread([&server, ends] {
        int caught = 0;
        sigwait(&ends, &caught);
        server.stop();
    }).detach();
    server.serve();
}

}  // namespace

int main(int count, char** given) {
    if (count != 7) {
        std::cerr << "usage: server leveldb|kyoto FOLDER PORT CACHE_BYTES RECORDS asynchronous|safe" << std::endl;
        return 2;
    }
    try {
        const Settings settings{given[2], std::stoull(given[4]), std::stoull(given[5]), string(given[6]) == "safe"};
        serve(given[1], std::stoi(given[3]), settings);
    } catch (const std::exception& error) {
        std::cerr << given[1] << ": " << error.what() << std::endl;
        return 1;
    }
    return 0;
}
