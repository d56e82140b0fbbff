"""Estimates how long the end of an optimizer step takes: replicas exchange gradients and change the weights."""

from __future__ import annotations

from dataclasses import dataclass

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.links import replicas_link
from rlgraph.passes.cost.optimizer import optimizer_bytes_per_weight
from rlgraph.passes.cost.weights import rank_trained_parameter_count, stage_trained_count


@dataclass(frozen=True, slots=True)
class OptimizerStepCostModel:
    """The end of an optimizer step, by the number of replicas: they all-reduce their gradients and change the
    weights."""

    island: NodeGroup
    one: int
    """Devices of a replica."""
    sent: float
    """Bytes of gradients and weights that replicas exchange in one pass around their ring."""
    common: float
    """The same bytes for what expert-parallel ranks have in common, which they exchange, too."""
    sharing: int
    """The number of expert-parallel ranks."""
    alike: int
    """The context-parallel ranks of a replica, which are replicas of each other here."""
    whole: float
    """Bytes that each replica reads and writes."""
    shared: float
    """More of these bytes, which replicas shard: with a sharded optimizer each updates its shard."""
    bandwidth: float
    share: float
    """The share of a link's bandwidth that is reached."""
    overhead: float
    hosted_s: float = 0.0
    """Seconds in which a replica's gradients go to the host, its processors update the weights, and these come back;
    0 where the optimizer's state is on the device."""
    shared_hosted_s: float = 0.0
    """More of these seconds, which replicas shard."""

    def communication_seconds(self, copies: int) -> float:
        """Return the seconds in which replicas communicate."""
        copies *= self.alike
        one = self.one // self.alike
        between = replicas_link(self.island, one, copies, self.share)
        seconds = 2 * between.all_gather_seconds(self.sent / 2, copies)
        if not self.common:
            return seconds
        ranks = copies * self.sharing
        wider = replicas_link(self.island, one // self.sharing, ranks, self.share)
        return seconds + 2 * wider.all_gather_seconds(self.common / 2, ranks)

    def memory_seconds(self, copies: int) -> float:
        """Return the seconds that a replica waits for its memory, and for its host's."""
        hosted_s = self.hosted_s + self.shared_hosted_s / copies
        return (self.whole + self.shared / copies) / self.bandwidth + hosted_s

    def cost(self, copies: int) -> Cost:
        """Return the cost of a step of so many replicas."""
        return Cost(
            memory=self.memory_seconds(copies), communication=self.communication_seconds(copies), overhead=self.overhead
        )

    def seconds(self, copies: int) -> float:
        """Return the seconds of `cost`."""
        return self.memory_seconds(copies) + self.communication_seconds(copies) + self.overhead


def optimizer_step_cost_model(
    config: ModelConfig, deployment: Deployment, constants: Constants
) -> OptimizerStepCostModel:
    """Return the end of an optimizer step of a model that is trained on such a split."""
    rates = constants.rates[deployment.engine, "train"]
    weights = rank_trained_parameter_count(config, deployment)
    stage = stage_trained_count(config, deployment)
    device = deployment.island.device
    # Replicas that shard the optimizer reduce-scatter float32 gradients and all-gather new weights; else they
    # all-reduce all gradients.
    split = deployment.engine_spec.shards_optimizer
    step = optimizer_bytes_per_weight(config.optimizer)
    waits = 1 - rates.hides
    # Weights travel while the next pass is computed, as gradients do during the last one.
    gathered = config.trained_item_bytes * (waits if device.kind in deployment.engine_spec.gathers_later else 1)
    sent_bytes = waits * step.gradient + gathered if split else 2 * waits * step.gradient
    # A rank has one of `ep` parts of the weights of all experts.
    experts = (stage - weights) / (deployment.ep - 1) if deployment.ep > 1 else weights
    stepped = stage / deployment.ep / deployment.cp if split else weights
    on_host = deployment.optimizer_on_host
    # What the host does not do, the device does.
    traffic = step.gradient + config.trained_item_bytes if on_host else step.memory_traffic_bytes + rates.stepped
    whole = weights * (step.gradient + (config.trained_item_bytes if split else traffic))
    shared = stepped * traffic if split else 0.0
    hosted_s = stepped * host_seconds_per_weight(config, deployment, constants) if on_host else 0.0
    reached = device.stream_bandwidth * rates.memory
    return OptimizerStepCostModel(
        deployment.island,
        deployment.mesh.replica_size,
        experts * sent_bytes,
        (weights - experts) * sent_bytes,
        deployment.ep,
        deployment.cp,
        whole,
        shared,
        reached,
        constants.collective,
        rates.update,
        0.0 if split else hosted_s,
        hosted_s if split else 0.0,
    )


def host_seconds_per_weight(config: ModelConfig, deployment: Deployment, constants: Constants) -> float:
    """Return the seconds of a weight that the host updates: its gradient goes there over the host's link, the node's
    processors, which its devices share, make the step, and the weight comes back."""
    step, device = optimizer_bytes_per_weight(config.optimizer, config.trained_item_bytes), deployment.island.device
    sent = step.gradient if deployment.engine_spec.memory.gradients_stay else config.trained_item_bytes
    travels = (sent + config.trained_item_bytes) / (device.host * constants.host_link)
    return travels + step.memory_traffic_bytes * deployment.island.per_node / constants.host_update
