"""Uses a server with nothing but grpcio and the published files: `client.py ADDRESS`."""

import sys
import threading

import grpc

from esker.log.v1 import log_pb2 as pb
from esker.log.v1 import log_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1])
log = log_pb2_grpc.LogStub(channel)

info = log.Create(pb.CreateRequest(log="orders", options=pb.Options(width=2)))
assert (info.tail, info.options.width) == (0, 2), info

# One at a time, each durable when answered.
assert log.Append(pb.AppendRequest(log="orders", record=pb.Record(data=b"first"))).position == 0

# Many under way, answered by tag.
requests = (
    pb.AppendRequest(log="orders", tag=tag, record=pb.Record(data=b"%d" % tag, streams=[b"even", b"odd"][tag % 2 :][:1]))
    for tag in range(200)
)
answers = {answer.tag: answer.appended.position for answer in log.AppendStream(requests)}
assert sorted(answers) == list(range(200)), answers
assert sorted(answers.values()) == list(range(1, 201)), answers

# All of it in order, and one stream of it.
def entries(**how):
    for message in log.Follow(pb.FollowRequest(log="orders", until_tail=True, **how)):
        for delivery in message.deliveries:
            assert delivery.WhichOneof("what") == "entry", delivery
            yield delivery.entry

followed = list(entries(position=0))
assert [entry.position for entry in followed] == list(range(201))
assert followed[0].data == b"first"
assert all(followed[position].data == b"%d" % tag for tag, position in answers.items())
assert [int(entry.data) for entry in entries(first=True, stream=b"odd")] == list(range(1, 200, 2))

# A follower at the tail is woken by an append.
following = log.Follow(pb.FollowRequest(log="orders", tail=True), timeout=30)
threading.Timer(0.2, lambda: log.Append(pb.AppendRequest(log="orders", record=pb.Record(data=b"last")))).start()
assert next(following).deliveries[0].entry.data == b"last"
following.cancel()

# Errors are told by code and by name.
try:
    log.AppendAt(pb.AppendAtRequest(log="orders", expected=7, records=[pb.Record(data=b"x")]))
    raise AssertionError("the tail is not at 7")
except grpc.RpcError as error:
    told = dict(error.trailing_metadata())
    assert error.code() == grpc.StatusCode.ABORTED, error
    assert (told["esker-error"], told["esker-position"]) == ("not-tail", "202"), told

# Exactly once.
writer = log.OpenWriter(pb.OpenWriterRequest(log="orders", writer="python"))
numbered = pb.AppendRequest(
    log="orders",
    record=pb.Record(data=b"once"),
    writer=pb.WriterNumber(writer="python", number=writer.next_number, session=writer.session),
)
first, again = log.Append(numbered), log.Append(numbered)
assert first.position == again.position and (first.already_there, again.already_there) == (False, True)

assert log.Seal(pb.SealRequest(log="orders")).tail == 203
print("ok")
