"""The learner: one update from a batch of unrolls, the target network, and everything a checkpoint must hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from vmpo import popart, values
from vmpo.config import Config
from vmpo.distributions import Distribution
from vmpo.learning.objectives import BASELINES, Evaluation, Gathered, Multipliers, Share, objective
from vmpo.learning.replicas import Replicas
from vmpo.losses.pixel_control import pixel_control_loss
from vmpo.networks.agent import AgentInput, AgentOutput, agent_inputs, make_agent, policy_family
from vmpo.popart import PopArtStatistics
from vmpo.records import EnvSpec, Trajectory, Weights, split, tree_map


class Learner:
    """Holds the online and the target network. ``update`` is one learner step of the paper."""

    def __init__(self, spec: EnvSpec, config: Config, replicas: Replicas | None = None) -> None:
        """With other learner processes beside it, ``config`` is the share of this one."""
        self.spec, self.config = spec, config
        self.replicas = replicas or Replicas()
        self.device = torch.device(config.learner.device)
        self.family = policy_family(spec, config)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        network = make_agent(spec, config)
        # Copied before they move: on a GPU an LSTM's weights are one block, which a copy would cut.
        self.target = copy.deepcopy(network).requires_grad_(False).to(self.device)
        self.online = network.to(self.device)
        self.multipliers = Multipliers(config.loss, self.family.kl_names).to(self.device)
        self.objective = objective(config.loss.algorithm)
        self.statistics = popart.initial_statistics(len(spec.tasks), self.device, config.loss.popart_bounds)
        self.learner_step = 0
        self.version = 0
        """Version of the target's weights, which are the ones that act."""
        self.skipped = self.skipped_in_a_row = 0
        """Updates that were left out because the loss or a gradient was not finite."""
        self.diagnosis: dict[str, Any] = {}
        """What the last of those looked like."""
        rate = config.learner.learning_rate
        self.optimiser = torch.optim.Adam(
            [
                {"params": list(self.online.parameters()), "lr": rate},
                {"params": list(self.multipliers.parameters()), "lr": config.learner.multiplier_learning_rate or rate},
            ],
            eps=config.learner.adam_epsilon,
            fused=True,
        )
        self.parameters, self.duals = (group["params"] for group in self.optimiser.param_groups)
        """Those of the online network, and the multipliers: listing them anew takes as long as a small layer."""

    def update(
        self, batch: Trajectory, progress: float = 0.0, safe_moment: Callable[[], None] = lambda: None
    ) -> dict[str, Tensor]:
        """One step on the total loss (Eq. 1), averaged over all replicas. Metrics stay on the device.

        Replicas are the virtual ones, one after another in this process, of all processes. ``progress`` is the share
        of the run that is over. ``safe_moment`` is called between replicas, where nothing has changed yet: it may
        raise to give the update up.
        """
        lag = self.version - batch.versions.double().mean()
        # Where the acting weights were the target's, the recorded distributions are the target's outputs.
        recorded = self.config.learner.recorded_behaviour and bool((batch.versions == self.version).all())
        given, batch = batch, self._to_device(batch)
        replicas = split(batch, self.config.learner.virtual_replicas)
        gathered = self._gather(replicas, recorded)

        self.optimiser.zero_grad(set_to_none=True)
        temperature = self.multipliers.temperature.detach().clone()
        total = torch.zeros((), device=self.device)
        evaluations, measured = [], []
        for index, replica in enumerate(replicas):
            safe_moment()
            evaluation = self._evaluate(replica, recorded)
            share = None if gathered is None else self._share(gathered, index)
            loss, replica_metrics = self._loss(evaluation, share)
            (loss / len(replicas)).backward()
            total = total + loss.detach() / len(replicas)
            measured.append(replica_metrics)
            evaluations.append((evaluation.returns, evaluation.tasks, evaluation.valid))
            del evaluation, loss
        metrics = _mean(measured) | {"policy_lag": lag, "loss": total}
        # Processes exchange everything before anything changes: if one is lost, the others are as they were.
        metrics = self._average(metrics)
        statistics = self._next_statistics(*(torch.cat(parts, dim=1) for parts in zip(*evaluations, strict=True)))
        observed = self._observation_moments(batch)
        metrics["gradient_norm"] = self._clip_gradient()
        # The one synchronisation of an update, at its end, where all of its work is queued.
        slopes = [p.grad for p in self.duals if p.grad is not None]
        if bool(torch.isfinite(torch.stack([metrics["loss"], metrics["gradient_norm"], *slopes]).sum())):
            self.optimiser.param_groups[0]["lr"] = self._learning_rate(progress)
            self.optimiser.step()
            self.multipliers.project_()
            self._move_statistics(statistics)
            for normaliser, of_processes in zip(self.online.normalisers, observed, strict=True):
                for moments in of_processes:
                    normaliser.merge(moments)
            self.skipped_in_a_row = 0
        else:
            self._skip(given, metrics, temperature)
        metrics["skipped_updates"] = torch.tensor(self.skipped)
        metrics["target_age"] = torch.tensor(float((self.learner_step + 1) % self.config.acting_period))
        self._count()
        return metrics | self._statistics_metrics()

    def give_up_unroll(self) -> None:
        """Count the updates that are left of an unroll without making them: targets stay in step with unrolls."""
        while self.learner_step % self.config.updates_per_unroll:
            self._count()

    def _count(self) -> None:
        self.learner_step += 1
        if self.learner_step % self.config.acting_period == 0:
            self._replace_target()

    def _skip(self, batch: Trajectory, metrics: dict[str, Tensor], temperature: Tensor) -> None:
        """Leave everything as it was before a batch whose loss or gradient is not finite, and describe that batch."""
        self.multipliers.temperature.data.copy_(temperature)
        self.skipped += 1
        self.skipped_in_a_row += 1
        self.diagnosis = {
            "learner_step": self.learner_step,
            "version": self.version,
            "metrics": {name: float(value) for name, value in metrics.items()},
            "batch": describe(batch),
        }

    def agree(self) -> None:
        """Take the first process's networks: equal seeds make equal weights only on equal machines."""
        for tensor in (*self.online.state_dict().values(), *self.target.state_dict().values()):
            self.replicas.broadcast_(tensor)

    def weights(self) -> Weights:
        """A copy of the acting (target) network's tensors."""
        return Weights(version=self.version, tensors=_copied(self.target))

    def online_weights(self) -> Weights:
        """A copy of the online network's tensors, which are the newest."""
        return Weights(version=self.version, tensors=_copied(self.online))

    def _to_device(self, batch: Trajectory) -> Trajectory:
        if self.device.type == "cpu":
            return batch
        # The actors refill this pinned memory once the update is over, and that waits for the device.
        moved = tree_map(lambda x: x.to(self.device, non_blocking=True), replace(batch, versions=torch.empty(0)))
        return replace(moved, versions=batch.versions)

    def _evaluate(self, batch: Trajectory, recorded: bool) -> Evaluation:
        """Forward pass of the online network, the target's distributions, returns and advantages (Sec. 4.1)."""
        loss = self.config.loss
        valid, tasks, actions = batch.valids[1:], batch.tasks[:-1], batch.actions[1:]
        inputs = agent_inputs(batch)
        output, _ = self.online.unroll(inputs, batch.state)
        policy = self.family.distribution(output.policy[:-1])
        log_probs = policy.log_prob(actions)
        behaviour = self.family.distribution(batch.behaviour)
        log_ratios = behaviour_log_probs = None
        if loss.algorithm != "vmpo":
            target, behaviour_log_probs = behaviour, behaviour.log_prob(actions)
            log_ratios = log_probs.detach() - behaviour_log_probs
        else:
            target = behaviour if recorded else self._target_policy(inputs, batch)
            if not recorded and (loss.importance_weights or loss.returns == "vtrace"):
                log_ratios = target.log_prob(actions) - behaviour.log_prob(actions)
        normalised = output.values.gather(-1, batch.tasks[..., None])[..., 0]
        returns, advantages, state_values = self._returns(batch, normalised, log_ratios)
        sigma = self.statistics.scale[tasks].float() if loss.advantage_scale == "sigma" else 1.0
        entropies = policy.entropy()
        return Evaluation(
            log_probs=log_probs,
            behaviour_log_probs=behaviour_log_probs,
            entropies=entropies,
            expected_log_probs=behaviour.expected_log_prob(policy)
            if loss.control_variate and loss.algorithm not in BASELINES
            else None,
            kl_parts=target.kl_parts(policy),
            normalised_values=normalised[:-1],
            returns=returns,
            advantages=advantages / sigma,
            importance_weights=log_ratios.exp().clamp(max=1.0)
            if loss.importance_weights and log_ratios is not None
            else None,
            valid=valid,
            tasks=tasks,
            pixel_control=self._pixel_control(batch, output),
            metrics={
                "value_explained_variance": values.explained_variance(returns, state_values, valid),
                "entropy": values.masked_mean(entropies.detach(), valid),
            },
        )

    @torch.no_grad()
    def _target_policy(self, inputs: AgentInput, batch: Trajectory) -> Distribution:
        output, _ = self.target.unroll(inputs, batch.state)
        return self.family.distribution(output.policy[:-1])

    @torch.no_grad()
    def _returns(
        self, batch: Trajectory, normalised: Float[Tensor, "T+1 B"], log_ratios: Float[Tensor, "T B"] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return targets, advantages and state values in the units of the rewards."""
        loss = self.config.loss
        state_values = popart.denormalise(normalised, batch.tasks, self.statistics)
        rewards, discounts, valid = batch.rewards[1:], loss.discount * batch.discounts[1:], batch.valids[1:]
        arguments = (rewards, discounts, state_values[:-1], state_values[-1])
        if loss.returns == "vtrace":
            ratios = torch.zeros_like(rewards) if log_ratios is None else log_ratios
            trace = values.vtrace(*arguments, ratios, valid, trace_decay=loss.gae_lambda)
            return trace.returns, trace.advantages, state_values[:-1]
        if loss.returns == "gae":
            returns = values.gae_returns(*arguments, valid, trace_decay=loss.gae_lambda)
        else:
            returns = values.n_step_returns(*arguments, valid)
        return returns, returns - state_values[:-1], state_values[:-1]

    def _loss(self, evaluation: Evaluation, share: Share | None) -> tuple[Tensor, dict[str, Tensor]]:
        """L_V + L_V-MPO (Eq. 1) or a baseline's policy loss, plus pixel control where asked for."""
        loss = self.config.loss
        policy_loss, metrics = self.objective(evaluation, self.multipliers, loss, share)
        targets = popart.normalise(evaluation.returns, evaluation.tasks, self.statistics)
        # Eq. 6, in PopArt's space.
        value_loss = 0.5 * values.masked_mean((evaluation.normalised_values - targets).square(), evaluation.valid)
        total = loss.value_cost * value_loss + policy_loss
        metrics = {**metrics, **evaluation.metrics, "loss_value": value_loss.detach()}
        if evaluation.pixel_control is not None:
            total = total + loss.pixel_control_cost * evaluation.pixel_control
            metrics["loss_pixel_control"] = evaluation.pixel_control.detach()
        return total, metrics

    def _gather(self, replicas: list[Trajectory], recorded: bool) -> Gathered | None:
        """The advantages of all replicas, for an E-step over the whole batch; they cost a forward pass of their own."""
        alone = self.config.loss.top_scope == "replica" or len(replicas) * self.replicas.count == 1
        if alone or self.config.loss.algorithm in BASELINES:
            return None
        with torch.no_grad():
            evaluations = [self._evaluate(replica, recorded) for replica in replicas]
        # One process may have data of the target itself, and another older data: both send weights.
        ones = torch.ones_like(evaluations[0].advantages)
        rho = [ones if e.importance_weights is None else e.importance_weights for e in evaluations]
        columns = [(e.advantages, e.valid.float(), weights) for e, weights in zip(evaluations, rho, strict=True)]
        mine = torch.cat([torch.stack(parts) for parts in columns], dim=2)
        advantages, valid, weights = torch.cat(self.replicas.gather(mine), dim=2)
        return Gathered(
            advantages=advantages,
            valid=valid.bool(),
            importance_weights=weights if self.config.loss.importance_weights else None,
        )

    def _share(self, gathered: Gathered, index: int) -> Share:
        """The part of a virtual replica of this process in what all processes gathered."""
        each = self.config.learner.virtual_replicas
        return Share(of=gathered, index=self.replicas.rank * each + index, count=self.replicas.count * each)

    def _average(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Average gradients and metrics over the processes, in one exchange."""
        if self.replicas.count == 1:
            return metrics
        parameters = (*self.parameters, *self.duals)
        numbers = torch.stack([x.to(self.device, torch.float32) for x in metrics.values()])
        self.replicas.mean_([*(p.grad for p in parameters if p.grad is not None), numbers])
        if self.config.loss.exact_temperature:
            # A solved temperature has no gradient; the last replica's stays, as it does within a process.
            self.replicas.broadcast_(self.multipliers.temperature, source=-1)
        return dict(zip(metrics, numbers, strict=True))

    def _learning_rate(self, progress: float) -> float:
        """Of the networks; the multipliers keep theirs."""
        first, last = self.config.learner.learning_rate, self.config.learner.final_learning_rate
        return first if last is None else first + (last - first) * min(1.0, progress)

    def _clip_gradient(self) -> Tensor:
        """Scale the networks' gradient down where the configuration bounds it; its norm before that."""
        limit = self.config.learner.max_gradient_norm
        if limit is not None:
            return clip_grad_norm_(self.parameters, limit)
        return get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def _pixel_control(self, batch: Trajectory, output: AgentOutput) -> Tensor | None:
        if self.online.pixel_control_head is None:
            return None
        return pixel_control_loss(
            q_values=self.online.pixel_control_head(output.features),
            frames=self.online.pixel_control_head.frames(batch.observations),
            actions=batch.actions[1:, :, 0],
            discounts=self.config.loss.pixel_control_discount * batch.discounts[1:],
            # Nothing on the screen moved from one episode's picture to the next one's.
            valid=batch.valids[1:] & ~batch.firsts[1:],
        )

    def _next_statistics(self, returns: Tensor, tasks: Tensor, valid: Tensor) -> PopArtStatistics:
        """One PopArt step on the whole batch of all processes."""
        rate = self.config.loss.popart_rate
        return popart.updated(self.statistics, returns, tasks, valid, rate, total=self.replicas.sum)

    def _move_statistics(self, new: PopArtStatistics) -> None:
        """Take new PopArt statistics, after the optimiser's step, preserving the value head's outputs."""
        popart.rescale_(self.online.value_readout, self.statistics, new)
        self.statistics = new

    def _observation_moments(self, batch: Trajectory) -> list[list[Tensor]]:
        """For each normaliser what the batches of all processes add to its statistics."""
        seen = tree_map(lambda x: x[:-1], batch.observations)
        return [self.replicas.gather(x) for x in self.online.observation_moments(seen, batch.valids[1:])]

    def _replace_target(self) -> None:
        """theta_target <- theta. Observation statistics move here too: within a period both networks share them."""
        for normaliser in self.online.normalisers:
            normaliser.commit()
        self.target.load_state_dict(self.online.state_dict())
        self.version += 1

    def _statistics_metrics(self) -> dict[str, Tensor]:
        metrics = {}
        for index, task in enumerate(self.spec.tasks):
            metrics[f"popart/mean/{task}"] = self.statistics.mean[index]
            metrics[f"popart/scale/{task}"] = self.statistics.scale[index]
        return metrics


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def _mean(measured: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Of each metric over the replicas."""
    if len(measured) == 1:
        return measured[0]
    return {name: torch.stack([metrics[name] for metrics in measured]).mean(dim=0) for name in measured[0]}


def describe(batch: Trajectory) -> dict[str, dict[str, float]]:
    """Range and mean of every tensor of a batch, and how many of its numbers are not finite."""
    statistics: dict[str, dict[str, float]] = {}

    def add(name: str, x: Tensor) -> None:
        numbers = x.detach().double().flatten()
        finite = numbers[torch.isfinite(numbers)]
        statistics[name] = {"count": len(numbers), "not_finite": len(numbers) - len(finite)}
        if len(finite):
            statistics[name] |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}

    for field in fields(batch):
        value = getattr(batch, field.name)
        parts = (
            {f"{field.name}.{key}": x for key, x in value.items()} if isinstance(value, dict) else {field.name: value}
        )
        for name, x in parts.items():
            add(name, x)
    return statistics
