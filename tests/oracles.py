"""Slow transcriptions of the paper's formulas, written from the paper and from nothing else.

Explicit Python loops over float64 NumPy arrays. The exponentials of the E-step run in decimal arithmetic, so that
Eqs. 3 and 4 can be copied as they stand, without the shift by the largest advantage that a float would need.
Time-major ``[T, B]`` arrays; sample (t, b) has the flat index ``t * B + b``.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

EXACT = decimal.Context(prec=50, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def as_array(x) -> np.ndarray:
    """A float64 (or integer, or Boolean) copy of a tensor or array."""
    array = np.array(x.detach().cpu().numpy() if hasattr(x, "detach") else x)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def end_of_trace(valid: np.ndarray, start: int, column: int) -> int:
    """Index of the first state from ``start`` on whose outgoing transition is no transition of the MDP, or T."""
    end = start
    while end < valid.shape[0] and valid[end, column]:
        end += 1
    return end


# Policy evaluation (Sec. 4.1).


def n_step_returns(rewards, discounts, values, bootstrap, valid=None) -> np.ndarray:
    """G_l = sum_{k=l}^{t+n-1} gamma^{k-l} r_k + gamma^{t+n-l} V(s_{t+n}), t+n being where the trace ends."""
    length, batch = rewards.shape
    valid = np.ones((length, batch), bool) if valid is None else valid
    states = np.concatenate([values, bootstrap[None]])
    returns = np.zeros((length, batch))
    for b in range(batch):
        for start in range(length):
            end = end_of_trace(valid, start, b)
            discount = 1.0
            for k in range(start, end):
                returns[start, b] += discount * rewards[k, b]
                discount *= discounts[k, b]
            returns[start, b] += discount * states[end, b]
    return returns


def gae_returns(rewards, discounts, values, bootstrap, valid=None, trace_decay=0.95) -> np.ndarray:
    """V(s_t) + sum_k (gamma lambda)^{k-t} delta_k, with delta_k = r_k + gamma V(s_{k+1}) - V(s_k)."""
    length, batch = rewards.shape
    valid = np.ones((length, batch), bool) if valid is None else valid
    states = np.concatenate([values, bootstrap[None]])
    returns = np.zeros((length, batch))
    for b in range(batch):
        for start in range(length):
            returns[start, b] = values[start, b]
            trace = 1.0
            for k in range(start, end_of_trace(valid, start, b)):
                delta = rewards[k, b] + discounts[k, b] * states[k + 1, b] - states[k, b]
                returns[start, b] += trace * delta
                trace *= discounts[k, b] * trace_decay
    return returns


def vtrace(
    rewards, discounts, values, bootstrap, log_ratios, valid=None, trace_decay=1.0, clip_rho=1.0, clip_c=1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Targets and advantages of Espeholt et al. 2018, Eq. 1 and Sec. 4.2 (whose rho is not multiplied in here).

    v_t = V(s_t) + sum_k gamma^{k-t} (prod_{i=t}^{k-1} c_i) rho_k delta_k. No action was taken at an invalid step: its
    advantage is 0.
    """
    length, batch = rewards.shape
    valid = np.ones((length, batch), bool) if valid is None else valid
    states = np.concatenate([values, bootstrap[None]])
    targets = np.concatenate([np.zeros((length, batch)), bootstrap[None]])
    advantages = np.zeros((length, batch))
    for b in range(batch):
        for start in range(length):
            targets[start, b] = values[start, b]
            trace = 1.0
            for k in range(start, end_of_trace(valid, start, b)):
                ratio = math.exp(min(log_ratios[k, b], 700.0))
                delta = rewards[k, b] + discounts[k, b] * states[k + 1, b] - states[k, b]
                targets[start, b] += trace * min(clip_rho, ratio) * delta
                trace *= discounts[k, b] * trace_decay * min(clip_c, ratio)
        for t in range(length):
            if valid[t, b]:
                advantages[t, b] = rewards[t, b] + discounts[t, b] * targets[t + 1, b] - values[t, b]
    return targets[:length], advantages


# PopArt (Sec. 4.1; van Hasselt et al. 2016, Hessel et al. 2018).


def popart_scale(mean, second_moment, minimum=1e-2, maximum=1e6) -> np.ndarray:
    """sigma = clip(sqrt(nu - mu^2))."""
    scales = np.zeros(len(mean))
    for n in range(len(mean)):
        variance = max(second_moment[n] - mean[n] ** 2, 0.0)
        scales[n] = min(max(math.sqrt(variance), minimum), maximum)
    return scales


def popart_updated(mean, second_moment, targets, tasks, valid, rate) -> tuple[np.ndarray, np.ndarray]:
    """One step: mu += beta (mean G - mu), nu += beta (mean G^2 - nu), per task over its valid targets."""
    new_mean, new_second = np.array(mean), np.array(second_moment)
    for n in range(len(mean)):
        total, square, count = 0.0, 0.0, 0
        for t in range(targets.shape[0]):
            for b in range(targets.shape[1]):
                if valid[t, b] and tasks[t, b] == n:
                    total += targets[t, b]
                    square += targets[t, b] ** 2
                    count += 1
        if count:
            new_mean[n] += rate * (total / count - mean[n])
            new_second[n] += rate * (square / count - second_moment[n])
    return new_mean, new_second


def popart_normalised(x, tasks, mean, second_moment, minimum=1e-2, maximum=1e6) -> np.ndarray:
    scales = popart_scale(mean, second_moment, minimum, maximum)
    result = np.zeros(x.shape)
    for t in range(x.shape[0]):
        for b in range(x.shape[1]):
            result[t, b] = (x[t, b] - mean[tasks[t, b]]) / scales[tasks[t, b]]
    return result


# Distributions (App. C).


def categorical_log_probabilities(logits, sizes) -> list[np.ndarray]:
    """Log probabilities of each independent categorical whose logits stand one after another."""
    parts, start = [], 0
    for size in sizes:
        own = logits[start : start + size]
        top = max(own)
        log_normaliser = top + math.log(sum(math.exp(x - top) for x in own))
        parts.append(np.array([x - log_normaliser for x in own]))
        start += size
    return parts


def categorical_log_prob(logits, sizes, action) -> float:
    parts = categorical_log_probabilities(logits, sizes)
    return sum(part[a] for part, a in zip(parts, action, strict=True))


def categorical_entropy(logits, sizes) -> float:
    return -sum(math.exp(x) * x for part in categorical_log_probabilities(logits, sizes) for x in part)


def categorical_kl(old_logits, new_logits, sizes) -> float:
    """D(pi_old || pi) = sum_a pi_old(a) log(pi_old(a) / pi(a)), added over independent categoricals."""
    old, new = categorical_log_probabilities(old_logits, sizes), categorical_log_probabilities(new_logits, sizes)
    total = 0.0
    for p, q in zip(old, new, strict=True):
        for log_p, log_q in zip(p, q, strict=True):
            total += math.exp(log_p) * (log_p - log_q)
    return total


def gaussian_log_prob(mean, covariance, action) -> float:
    difference = action - mean
    distance = difference @ np.linalg.inv(covariance) @ difference
    return -0.5 * (distance + len(mean) * math.log(2 * math.pi) + math.log(np.linalg.det(covariance)))


def gaussian_entropy(covariance) -> float:
    return 0.5 * math.log(np.linalg.det(2 * math.pi * math.e * covariance))


def gaussian_kl_mean(old_mean, old_covariance, new_mean) -> float:
    """D^mu = 1/2 (mu - mu_old)^T Sigma_old^-1 (mu - mu_old)."""
    difference = new_mean - old_mean
    return 0.5 * difference @ np.linalg.inv(old_covariance) @ difference


def gaussian_kl_covariance(old_covariance, new_covariance) -> float:
    """D^Sigma = 1/2 [Tr(Sigma^-1 Sigma_old) - d + log(|Sigma| / |Sigma_old|)]."""
    trace = np.trace(np.linalg.inv(new_covariance) @ old_covariance)
    log_ratio = math.log(np.linalg.det(new_covariance) / np.linalg.det(old_covariance))
    return 0.5 * (trace - len(old_covariance) + log_ratio)


# Policy improvement (Eqs. 2 to 5, App. A, C, E).


def select_top(advantages, valid, fraction=0.5) -> np.ndarray:
    """D~: the floor(fraction n) highest of the n valid advantages; of equal ones, those with the lower flat index."""
    batch = advantages.shape[1]
    candidates = [(-advantages[t, b], t * batch + b) for t, b in np.argwhere(valid)]
    selected = np.zeros(advantages.shape, bool)
    for _, index in sorted(candidates)[: math.floor(fraction * len(candidates))]:
        selected[index // batch, index % batch] = True
    return selected


def exponentiated(advantages, selected, temperature, weights=None) -> dict[tuple[int, int], Decimal]:
    """rho exp(A / eta) of every selected sample, exactly."""
    with decimal.localcontext(EXACT):
        terms = {}
        for t, b in np.argwhere(selected):
            weight = Decimal(1) if weights is None else Decimal(float(weights[t, b]))
            terms[int(t), int(b)] = weight * (Decimal(float(advantages[t, b])) / Decimal(float(temperature))).exp()
        return terms


def psi(advantages, selected, temperature, weights=None) -> np.ndarray:
    """Eq. 3, right: exp(A / eta) over its sum in D~; zero elsewhere."""
    result = np.zeros(advantages.shape)
    with decimal.localcontext(EXACT):
        terms = exponentiated(advantages, selected, temperature, weights)
        normaliser = sum(terms.values(), Decimal(0))
        for (t, b), term in terms.items():
            result[t, b] = float(term / normaliser)
    return result


def temperature_loss(advantages, selected, temperature, epsilon, weights=None) -> float:
    """Eq. 4: eta eps + eta log[1/|D~| sum exp(A / eta)]."""
    with decimal.localcontext(EXACT):
        terms = exponentiated(advantages, selected, temperature, weights)
        eta = Decimal(float(temperature))
        average = sum(terms.values(), Decimal(0)) / len(terms)
        return float(eta * Decimal(float(epsilon)) + eta * average.ln())


def e_step_kl(advantages, selected, temperature, weights=None) -> float:
    """sum psi log(psi / p), what Eq. 18 bounds by eps; p is 1/|D~|, or rho/|D~| under importance weights (App. E)."""
    total = Decimal(0)
    with decimal.localcontext(EXACT):
        terms = exponentiated(advantages, selected, temperature, weights)
        normaliser = sum(terms.values(), Decimal(0))
        for (t, b), term in terms.items():
            if term:
                probability = term / normaliser
                reference = (Decimal(1) if weights is None else Decimal(float(weights[t, b]))) / len(terms)
                total += probability * (probability / reference).ln()
        return float(total)


def temperature_gradient(advantages, selected, temperature, epsilon, weights=None) -> float:
    """dL_eta / d eta = eps - KL: the multiplier's gradient is the slack of its constraint (App. A)."""
    return epsilon - e_step_kl(advantages, selected, temperature, weights)


def solve_temperature(advantages, selected, epsilon, weights=None) -> float:
    """The root of eps - KL(eta), which rises with eta, by bisection on log eta. The caller knows that it exists."""
    chosen = advantages[selected]
    spread = chosen.max() - chosen.min()
    low, high = math.log(spread * 1e-6), math.log(spread * 1e6)
    for _ in range(70):
        middle = 0.5 * (low + high)
        if temperature_gradient(advantages, selected, math.exp(middle), epsilon, weights) < 0:
            low = middle
        else:
            high = middle
    return math.exp(0.5 * (low + high))


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Values of the terms of L_V-MPO and the gradients that the paper lets through."""

    policy: float
    temperature: float
    alpha: float
    psi: np.ndarray
    mean_kls: dict[str, float]
    e_step_kl: float
    effective_sample_size: float
    temperature_gradient: float
    alpha_gradients: dict[str, float]
    log_prob_gradient: np.ndarray
    kl_gradients: dict[str, np.ndarray]

    @property
    def total(self) -> float:
        return self.policy + self.temperature + self.alpha


def vmpo_loss(
    log_probs,
    advantages,
    kl_parts,
    temperature,
    alphas,
    epsilon_temperature,
    epsilon_alphas,
    valid=None,
    weights=None,
    top_fraction=0.5,
) -> Loss:
    """Eq. 2 for a batch with at least two valid samples; one L_alpha for each part of the KL (App. C)."""
    valid = np.ones(advantages.shape, bool) if valid is None else valid
    selected = select_top(advantages, valid, top_fraction)
    probabilities = psi(advantages, selected, temperature, weights)
    policy_loss = 0.0
    for t, b in np.argwhere(selected):
        policy_loss -= probabilities[t, b] * log_probs[t, b]
    alpha_loss, mean_kls, kl_gradients = 0.0, {}, {}
    for name, kl in kl_parts.items():
        total, gradient = 0.0, np.zeros(kl.shape)
        for t, b in np.argwhere(valid):
            total += kl[t, b]
            gradient[t, b] = alphas[name] / valid.sum()
        mean_kls[name], kl_gradients[name] = total / valid.sum(), gradient
        alpha_loss += alphas[name] * (epsilon_alphas[name] - mean_kls[name]) + alphas[name] * mean_kls[name]
    return Loss(
        policy=policy_loss,
        temperature=temperature_loss(advantages, selected, temperature, epsilon_temperature, weights),
        alpha=alpha_loss,
        psi=probabilities,
        mean_kls=mean_kls,
        e_step_kl=e_step_kl(advantages, selected, temperature, weights),
        effective_sample_size=1.0 / sum(p**2 for p in probabilities[selected]),
        temperature_gradient=temperature_gradient(advantages, selected, temperature, epsilon_temperature, weights),
        alpha_gradients={name: epsilon_alphas[name] - mean_kls[name] for name in kl_parts},
        log_prob_gradient=-probabilities,
        kl_gradients=kl_gradients,
    )
