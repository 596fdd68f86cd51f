//! What is measured: how each peer's clients append and follow.
//!
//! [`Log::open`] (makes the log) → [`Log::writer`] (a connection each) → [`Writer::append`] · [`Log::follower`] →
//! [`Follower::next`]

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::ValueEnum;
use esker_log::Record;
use esker_remote::Appender;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::append_stream_response::Outcome;
use esker_wire::proto::log::delivery::What;
use esker_wire::proto::log::log_client::LogClient;
use redis::aio::MultiplexedConnection;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// The log's name.
const LOG: &str = "bench";
/// Appends under way on a stream of frames, at most: more than there are writers.
const FRAMES_IN_FLIGHT_MAX: usize = 1_024;

/// A log over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Redis Streams: XADD, followed by a blocking XREAD
    Redis,
    /// Esker by gRPC, each writer on a stream of appends
    Esker,
    /// Esker by gRPC, the writers of a connection on one stream, by frames of what gathers
    EskerFrames,
    /// Esker by gRPC, each append a call
    EskerUnary,
    /// Kafka: a topic of one partition, acks=all
    Kafka,
}

impl Peer {
    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Esker => "esker",
            Self::EskerFrames => "esker-frames",
            Self::EskerUnary => "esker-unary",
            Self::Kafka => "kafka",
        }
    }

    /// How it is set up, and what its acknowledgement means.
    pub fn setup(self) -> &'static str {
        match self {
            Self::Redis => {
                "XADD and a blocking XREAD; appendonly yes, appendfsync always, save off, no rewrite of its file: an acknowledged entry is synced"
            }
            Self::Esker => {
                "AppendStream and Follow of `esker serve --grpc` with its defaults: an acknowledged entry is synced"
            }
            Self::EskerFrames => {
                "as esker, with one stream for the writers of a connection: what they append while a message is sent goes with the next one"
            }
            Self::EskerUnary => "as esker, with a call (Append) for each entry",
            Self::Kafka => {
                "at most 8 producers, acks=all, linger 0, one request of each under way, a topic of one partition, one node in KRaft mode with one replica, log.flush.interval.messages=1: an acknowledged \
                 entry's segment is synced. Kafka's own default leaves that to the operating system and counts on replicas instead, which one node has none of"
            }
        }
    }
}

/// A log that is there, and the connections of its writers.
pub struct Log {
    address: SocketAddr,
    links: Links,
}

enum Links {
    Redis(Vec<MultiplexedConnection>),
    Esker(Vec<LogClient<Channel>>),
    EskerFrames(Vec<Appender>),
    EskerUnary(Vec<LogClient<Channel>>),
    #[cfg(feature = "kafka")]
    Kafka(Vec<rdkafka::producer::FutureProducer>),
}

/// A client that appends.
pub enum Writer {
    Redis(MultiplexedConnection),
    Stream {
        requests: mpsc::Sender<proto::AppendRequest>,
        answers: Streaming<proto::AppendStreamResponse>,
    },
    Frames(Appender),
    Unary(LogClient<Channel>),
    #[cfg(feature = "kafka")]
    Kafka(rdkafka::producer::FutureProducer),
}

/// A client that follows from the tail.
pub enum Follower {
    Redis {
        connection: MultiplexedConnection,
        after: String,
    },
    Esker(Streaming<proto::FollowResponse>),
    #[cfg(feature = "kafka")]
    Kafka(Box<rdkafka::consumer::StreamConsumer>),
}

/// Producers that Kafka's writers share: each has threads of its own.
#[cfg(feature = "kafka")]
const PRODUCERS_MAX: u32 = 8;

async fn client(address: SocketAddr) -> Result<LogClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
    Ok(LogClient::new(endpoint.connect().await?))
}

async fn redis(address: SocketAddr) -> Result<MultiplexedConnection> {
    // A follower waits for as long as nothing comes.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(format!("redis://{address}"))?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

fn request(data: Bytes) -> proto::AppendRequest {
    let record = Some(proto::Record { data, streams: Vec::new() });
    proto::AppendRequest { log: LOG.into(), record, ..Default::default() }
}

impl Log {
    /// Makes the log on a server that has just begun, with so many connections for writers.
    ///
    /// # Errors
    /// What the server says.
    pub async fn open(peer: Peer, address: SocketAddr, connections: u32) -> Result<Self> {
        let links = match peer {
            Peer::Redis => {
                let mut links = Vec::new();
                for _ in 0..connections {
                    links.push(redis(address).await?);
                }
                // So that there is something whose last entry can be asked for.
                redis::cmd("XADD").arg(&[LOG, "*", "d", "first"]).query_async::<String>(&mut links[0]).await?;
                Links::Redis(links)
            }
            Peer::Esker | Peer::EskerFrames | Peer::EskerUnary => {
                let mut links = Vec::new();
                for _ in 0..connections {
                    links.push(client(address).await?);
                }
                links[0].create(proto::CreateRequest { log: LOG.into(), options: None }).await?;
                match peer {
                    Peer::EskerFrames => {
                        let mut appenders = Vec::new();
                        for link in links {
                            appenders.push(Appender::open(link, LOG, FRAMES_IN_FLIGHT_MAX).await?);
                        }
                        Links::EskerFrames(appenders)
                    }
                    Peer::EskerUnary => Links::EskerUnary(links),
                    _ => Links::Esker(links),
                }
            }
            #[cfg(feature = "kafka")]
            Peer::Kafka => {
                kafka::create(address).await?;
                let producers = (0..connections.min(PRODUCERS_MAX)).map(|_| kafka::producer(address));
                Links::Kafka(producers.collect::<Result<_>>()?)
            }
            #[cfg(not(feature = "kafka"))]
            Peer::Kafka => bail!("build with --features kafka"),
        };
        Ok(Self { address, links })
    }

    /// One more writer; the connections go round.
    ///
    /// # Errors
    /// What the server says.
    pub async fn writer(&self, number: u32) -> Result<Writer> {
        Ok(match &self.links {
            Links::Redis(links) => Writer::Redis(links[number as usize % links.len()].clone()),
            Links::EskerFrames(links) => Writer::Frames(links[number as usize % links.len()].clone()),
            Links::EskerUnary(links) => Writer::Unary(links[number as usize % links.len()].clone()),
            Links::Esker(links) => {
                let (requests, outgoing) = mpsc::channel(1);
                let mut client = links[number as usize % links.len()].clone();
                let answers = client.append_stream(ReceiverStream::new(outgoing)).await?;
                Writer::Stream { requests, answers: answers.into_inner() }
            }
            #[cfg(feature = "kafka")]
            Links::Kafka(links) => Writer::Kafka(links[number as usize % links.len()].clone()),
        })
    }

    /// Follows from the tail as it is now, on a connection of its own.
    ///
    /// # Errors
    /// What the server says.
    pub async fn follower(&self) -> Result<Follower> {
        Ok(match &self.links {
            Links::Redis(_) => {
                let mut connection = redis(self.address).await?;
                let last: redis::streams::StreamInfoStreamReply =
                    redis::cmd("XINFO").arg(&["STREAM", LOG]).query_async(&mut connection).await?;
                Follower::Redis { connection, after: last.last_generated_id }
            }
            Links::Esker(_) | Links::EskerFrames(_) | Links::EskerUnary(_) => {
                let start = Some(proto::follow_request::Start::Tail(true));
                let request = proto::FollowRequest { log: LOG.into(), start, ..Default::default() };
                Follower::Esker(client(self.address).await?.follow(request).await?.into_inner())
            }
            #[cfg(feature = "kafka")]
            Links::Kafka(_) => Follower::Kafka(Box::new(kafka::consumer(self.address)?)),
        })
    }
}

impl Writer {
    /// Appends an entry; returns when it is durable.
    ///
    /// # Errors
    /// What the server says.
    pub async fn append(&mut self, data: Bytes) -> Result<()> {
        match self {
            Self::Redis(connection) => {
                let mut command = redis::cmd("XADD");
                command.arg(LOG).arg("*").arg("d").arg(&data[..]);
                command.query_async::<String>(connection).await?;
            }
            Self::Stream { requests, answers } => {
                requests.send(request(data)).await.ok().context("the stream has ended")?;
                let answer = answers.message().await?.context("the stream has ended")?;
                if let Some(Outcome::Failed(failure)) = answer.outcome {
                    bail!("{}", failure.message);
                }
            }
            Self::Frames(appender) => drop(appender.append(Record::from(data)).await?),
            Self::Unary(client) => drop(client.append(request(data)).await?),
            #[cfg(feature = "kafka")]
            Self::Kafka(producer) => kafka::append(producer, &data).await?,
        }
        Ok(())
    }
}

impl Follower {
    /// Entries that came, waited for. They are pushed to `entries`. If the call is dropped, the next one brings what it
    /// would have brought.
    ///
    /// # Errors
    /// What the server says; a gap where no position was given up.
    pub async fn next(&mut self, entries: &mut Vec<Bytes>) -> Result<()> {
        match self {
            Self::Redis { connection, after } => {
                let mut command = redis::cmd("XREAD");
                command.arg(&["COUNT", "1000", "BLOCK", "0", "STREAMS", LOG]).arg(&*after);
                let read: redis::streams::StreamReadReply = command.query_async(connection).await?;
                for entry in read.keys.into_iter().flat_map(|key| key.ids) {
                    let data: Vec<u8> = entry.get("d").context("an entry without its field")?;
                    *after = entry.id;
                    entries.push(data.into());
                }
            }
            Self::Esker(stream) => {
                let message = stream.message().await?.context("the follower has ended")?;
                for delivery in message.deliveries {
                    match delivery.what {
                        Some(What::Entry(entry)) => entries.push(entry.data),
                        // A position that was given up.
                        Some(What::Gap(_)) => {}
                        other => bail!("{other:?}"),
                    }
                }
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(consumer) => entries.push(kafka::next(consumer).await?),
        }
        Ok(())
    }
}

/// Kafka, through librdkafka.
#[cfg(feature = "kafka")]
mod kafka {
    use std::net::SocketAddr;
    use std::time::Duration;

    use anyhow::{Context, Result};
    use bytes::Bytes;
    use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
    use rdkafka::client::DefaultClientContext;
    use rdkafka::config::ClientConfig;
    use rdkafka::consumer::{Consumer, StreamConsumer};
    use rdkafka::producer::{FutureProducer, FutureRecord};
    use rdkafka::util::Timeout;
    use rdkafka::{Message, Offset, TopicPartitionList};

    use super::LOG;

    fn config(address: SocketAddr) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", address.to_string()).set("log_level", "3");
        config
    }

    pub async fn create(address: SocketAddr) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> = config(address).create()?;
        let topic = NewTopic::new(LOG, 1, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
        for result in admin.create_topics([&topic], &options).await? {
            result.map_err(|(name, code)| anyhow::anyhow!("topic {name}: {code}"))?;
        }
        Ok(())
    }

    pub fn producer(address: SocketAddr) -> Result<FutureProducer> {
        // One request under way: what gathers meanwhile goes together, and shares a sync. With more of them each entry
        // has a sync of its own.
        let mut config = config(address);
        config.set("acks", "all").set("linger.ms", "0").set("max.in.flight.requests.per.connection", "1");
        Ok(config.create()?)
    }

    pub fn consumer(address: SocketAddr) -> Result<StreamConsumer> {
        let consumer: StreamConsumer =
            config(address).set("group.id", "bench").set("enable.auto.commit", "false").create()?;
        let (_, high) = consumer.fetch_watermarks(LOG, 0, Duration::from_secs(30))?;
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition_offset(LOG, 0, Offset::Offset(high))?;
        consumer.assign(&partitions)?;
        Ok(consumer)
    }

    pub async fn append(producer: &FutureProducer, data: &[u8]) -> Result<()> {
        let record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(LOG).payload(data).partition(0);
        producer.send(record, Timeout::Never).await.map_err(|(error, _)| error)?;
        Ok(())
    }

    pub async fn next(consumer: &StreamConsumer) -> Result<Bytes> {
        let message = consumer.recv().await?;
        Ok(Bytes::copy_from_slice(message.payload().context("an entry without data")?))
    }
}
