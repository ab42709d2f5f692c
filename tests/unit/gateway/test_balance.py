"""Balance of the router over replicas that are simulated: several gateways, reports that lag behind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from dartspec.gateway.replica_load import ReplicaLoad
from dartspec.gateway.router import Candidate, Wanted, choose
from dartspec.gateway.types import Mode, Opening
from dartspec.services.common.types import Sampling
from dartspec.v1 import common_pb2

TYPICAL = 64
OPENING = Opening((1,) * 20, 20, Sampling(temperature=0.0, max_tokens=TYPICAL), 0, Mode.AUTO, 0, "r")
STEP = 0.05


@dataclass
class Replica:
    """Tokens per second are rate * sessions ** shape, shared equally; shape 0: a session more slows all others."""

    rate: float
    shape: float
    left: list[float] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    served: float = 0.0
    assigned: int = 0
    speed: float = 0.0

    def open(self, tokens: float, owner: int) -> None:
        self.left.append(tokens)
        self.owners.append(owner)
        self.assigned += 1

    def run(self) -> None:
        if not self.left:
            return
        speed = self.rate * len(self.left) ** self.shape
        done = speed * STEP / len(self.left)
        self.served += sum(min(done, left) for left in self.left)
        self.speed += (speed - self.speed) * (0.01 if self.speed else 1.0)
        kept = [(left - done, owner) for left, owner in zip(self.left, self.owners, strict=True) if left > done]
        self.left, self.owners = [left for left, _ in kept], [owner for _, owner in kept]

    def report(self) -> common_pb2.LoadReport:
        return common_pb2.LoadReport(
            sessions=len(self.left),
            running_sessions=len(self.left),
            committed_tokens_per_second=self.speed,
            kv_capacity=10**7,
            kv_used=100 * len(self.left),
        )


class Gateways:
    """``count`` routers, each with its own view, which is as old as its last report."""

    def __init__(self, replicas: Sequence[Replica], count: int, policy: str) -> None:
        self.replicas = replicas
        self.policy = policy
        self.views = [[ReplicaLoad() for _ in replicas] for _ in range(count)]
        self.rngs = [random.Random(gateway) for gateway in range(count)]
        self.turns = [0] * count

    def send(self, gateway: int, tokens: float) -> None:
        views = self.views[gateway]
        among = [
            Candidate(index, view.load(replica.owners.count(gateway)))
            for index, (replica, view) in enumerate(zip(self.replicas, views, strict=True))
        ]
        wanted = Wanted(20, TYPICAL, TYPICAL)
        index = choose(self.policy, among, wanted, self.rngs[gateway], self.turns[gateway])
        self.turns[gateway] += 1
        views[index].sent(OPENING)
        self.replicas[index].open(tokens, gateway)

    def hear(self, now: float) -> None:
        for views in self.views:
            for replica, view in zip(self.replicas, views, strict=True):
                view.reported(replica.report(), now)


def warm_up(gateways: Gateways, rng: random.Random, seconds: float = 20.0) -> None:
    """Thin traffic of uneven length first: replicas are measured with different numbers of sessions."""
    now = 0.0
    while now < seconds or any(replica.left for replica in gateways.replicas):
        if now < seconds and rng.random() < 0.2:
            gateways.send(rng.randrange(len(gateways.views)), rng.uniform(4, 120))
        for replica in gateways.replicas:
            replica.run()
        now += STEP
        if rng.random() < 0.5:
            gateways.hear(now)
    gateways.hear(now)
    for replica in gateways.replicas:
        replica.assigned, replica.served = 0, 0.0


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0])
def test_a_thousand_requests_at_once_spread_over_equal_replicas(count: int, shape: float) -> None:
    gateways = Gateways([Replica(200.0, shape) for _ in range(8)], count, "dart")
    warm_up(gateways, random.Random(count))
    for request in range(1000):  # no report comes in between
        gateways.send(request % count, TYPICAL)
    assigned = [replica.assigned for replica in gateways.replicas]
    assert sum(assigned) == 1000
    assert max(assigned) <= 1.2 * 125


@pytest.mark.parametrize("count", [1, 4])
def test_what_one_gateway_sends_others_see_in_reports(count: int) -> None:
    """The same burst within a second, with reports of the past under way."""
    gateways = Gateways([Replica(200.0, 0.5) for _ in range(8)], count, "dart")
    rng = random.Random(7)
    for request in range(1000):
        gateways.send(rng.randrange(count), TYPICAL)
        if request % 50 == 0:
            gateways.hear(request / 1000)
    assigned = [replica.assigned for replica in gateways.replicas]
    assert max(assigned) <= 1.2 * 125


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("shape", [0.0, 0.5, 0.8, 1.0])
def test_a_replica_at_half_speed_gets_about_half(count: int, shape: float) -> None:
    """A closed loop of 96 streams; tokens of the ten seconds after the first ten."""
    rate = 1200.0 / 24**shape
    replicas = [Replica(rate, shape) for _ in range(3)] + [Replica(rate / 2, shape)]
    gateways = Gateways(replicas, count, "dart")
    rng = random.Random(3)
    before = [0.0] * 4
    for step in range(int(20 / STEP)):
        if step == int(10 / STEP):
            before = [replica.served for replica in replicas]
        while sum(len(replica.left) for replica in replicas) < 96:
            gateways.send(rng.randrange(count), rng.uniform(0.5, 1.5) * TYPICAL)
        for replica in replicas:
            replica.run()
        if step % 3 == 0:
            gateways.hear(step * STEP)
    *fast, slow = (replica.served - then for replica, then in zip(replicas, before, strict=True))
    assert 0.35 <= slow / (sum(fast) / 3) <= 0.65
    assert max(fast) <= 1.2 * min(fast)


@pytest.mark.parametrize(("count", "most"), [(1, 0.65), (4, 0.8)])
def test_a_burst_gives_a_replica_at_half_speed_less(count: int, most: float) -> None:
    """Each of four gateways sees a quarter of the burst, and so takes the replicas for less busy than they are."""
    replicas = [Replica(400.0, 0.0) for _ in range(7)] + [Replica(200.0, 0.0)]
    gateways = Gateways(replicas, count, "dart")
    rng = random.Random(5)
    now = 0.0
    while now < 10.0 or any(replica.left for replica in replicas):  # all are busy, and so measured
        while now < 10.0 and sum(len(replica.left) for replica in replicas) < 64:
            gateways.send(rng.randrange(count), rng.uniform(0.5, 1.5) * TYPICAL)
        for replica in replicas:
            replica.run()
        now += STEP
        gateways.hear(now)
    for replica in replicas:
        replica.assigned = 0
    for request in range(1000):
        gateways.send(request % count, TYPICAL)
    *fast, slow = (replica.assigned for replica in replicas)
    assert max(fast) <= 1.2 * sum(fast) / 7
    assert 0.45 <= slow / (sum(fast) / 7) <= most


def test_round_robin_is_what_the_prediction_is_better_than() -> None:
    """A control: without regard for load the slow replica piles up, so the test above can fail."""
    replicas = [Replica(400.0, 0.0) for _ in range(3)] + [Replica(200.0, 0.0)]
    piled = {}
    for policy in ("round_robin", "dart"):
        fresh = [Replica(replica.rate, 0.0) for replica in replicas]
        gateways = Gateways(fresh, 1, policy)
        for step in range(int(20 / STEP)):
            if step % 2 == 0:
                gateways.send(0, 1.4 * TYPICAL)
            for replica in fresh:
                replica.run()
            gateways.hear(step * STEP)
        piled[policy] = len(fresh[3].left) / max(1, max(len(replica.left) for replica in fresh[:3]))
    assert piled["dart"] < 2 < piled["round_robin"]
