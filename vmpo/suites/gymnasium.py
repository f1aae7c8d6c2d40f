"""Any Gymnasium environment: by id, by ``module:Id-v0``, or an unregistered ``module:Class`` or ``module:factory``.

An id with a vectorised implementation of its own uses it (CartPole's is several times faster). All others are
stepped one after another in this process, which is fastest for cheap ones; ``simulator_threads`` above 1 deals them out
to so many worker processes, which pays for slow ones and also survives environments that hang or die.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vmpo.config import EnvConfig
from vmpo.errors import UserCodeError, UserError, defined, named, place_of, unknown
from vmpo.records import EnvSpec, Observation, Timestep
from vmpo.suites import arrivals
from vmpo.suites.spaces import action_spec, encoded, misfit, observation_spec
from vmpo.suites.workers import Outcome, WorkerEnv
from vmpo.user_code import import_module, respelt

if TYPE_CHECKING:
    import gymnasium
    import gymnasium.vector
    from gymnasium.envs.registration import EnvSpec as Registration


Result = TypeVar("Result")

RETURNED = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}


def _explained(method: Callable[..., Result]) -> Callable[..., Result]:
    """What an environment raises, or Gymnasium for what it returned, as one line that names the place."""

    @wraps(method)
    def explained(self: Any, *arguments: Any) -> Result:
        try:
            return method(self, *arguments)
        except UserError:
            raise
        except Exception as error:
            what, place = named(error), place_of(error)
            env, observations = self.played()
            if not place:
                place = defined(getattr(type(env.unwrapped), method.__name__)) or self.name
                what = _misuse(error, method.__name__, env, observations) or what
            raise UserCodeError(what, place) from error

    return explained


def _misuse(error: Exception, method: str, env: Any, observations: Sequence[Any]) -> str | None:
    """What a method should have returned or taken, where that is what is wrong."""
    if "unpack" in str(error):
        return f"{method}() must return {RETURNED[method]}: {error}"
    if method == "reset" and "unexpected keyword argument" in str(error):
        return f"{error}; it must be reset(self, *, seed=None, options=None)"
    found = (misfit(env.observation_space, observation) for observation in observations if observation is not None)
    return next((what for what in found if what is not None), None)


class GymnasiumEnv:
    """A Gymnasium vector environment as the contract's, whichever way it resets itself."""

    def __init__(self, envs: gymnasium.vector.VectorEnv, name: str) -> None:
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        self._envs, self.name = envs, name
        if "autoreset_mode" not in envs.metadata:
            raise UserError(f"{name} does not say how it resets; set metadata['autoreset_mode'] of its vector version")
        self._mode = AutoresetMode(envs.metadata["autoreset_mode"]).name
        self._seed_each = isinstance(envs.unwrapped, SyncVectorEnv)
        self.num_envs = envs.num_envs
        self._resetting = np.zeros(envs.num_envs, np.bool_)
        self.spec = EnvSpec(
            observation=observation_spec(envs.single_observation_space),
            action=action_spec(envs.single_action_space),
            tasks=(name,),
            steps_per_second=_steps_per_second(envs.metadata),
        )
        self._encode = partial(encoded, self.spec.observation)

    @_explained
    def reset(self, seed: int) -> Timestep:
        """Start all episodes anew; the same seed gives the same stream."""
        seeds: Any = arrivals.env_seeds(seed, self.num_envs) if self._seed_each else seed
        observation, _ = self._envs.reset(seed=seeds)
        self._resetting = np.zeros(self.num_envs, np.bool_)
        return arrivals.opening(self._encode(observation), self.num_envs)

    @_explained
    def step(self, actions: np.ndarray) -> Timestep:
        batch = self.spec.action.native(actions)
        if self._mode == "DISABLED" and self._resetting.any():
            observation, outcome = self._step_and_reset(batch)
        else:
            delivered, *outcome, _ = self._envs.step(batch)
            observation = self._encode(delivered)
        score, terminated, truncated = np.asarray(outcome[0]), *(np.asarray(x, np.bool_) for x in outcome[1:])
        if self._mode == "SAME_STEP":
            return arrivals.same_step(observation, score, terminated, truncated)
        timestep = arrivals.next_step(observation, score, terminated, truncated, resetting=self._resetting)
        self._resetting = timestep.ended
        return timestep

    def _step_and_reset(self, batch: np.ndarray) -> tuple[Observation, list[np.ndarray]]:
        """Step the running environments and reset the ended ones, where the vector environment resets nothing itself.

        A vector environment cannot be stepped in part, and an ended one must not be stepped. So the ended ones are
        reset, stepped along with the others, and reset once more to undo that step: two resets per episode.
        """
        self._envs.reset(options={"reset_mask": self._resetting.copy()})
        delivered, *outcome, _ = self._envs.step(batch)
        observation = {name: array.copy() for name, array in self._encode(delivered).items()}
        delivered, _ = self._envs.reset(options={"reset_mask": self._resetting.copy()})
        for name, array in self._encode(delivered).items():
            observation[name][self._resetting] = array[self._resetting]
        return observation, outcome

    def render(self) -> np.ndarray:
        from gymnasium.vector import SyncVectorEnv

        envs = self._envs.unwrapped
        pictures = [envs.envs[0].render()] if isinstance(envs, SyncVectorEnv) else self._envs.render()
        if not pictures or not isinstance(pictures[0], np.ndarray):
            raise UserError(f"{self.name} gives no picture; it must support render_mode='rgb_array'")
        return pictures[0]

    def played(self) -> tuple[Any, Sequence[Any]]:
        """An environment, and the last observations as they were returned."""
        envs: Any = self._envs.unwrapped
        return (envs.envs[0], envs._env_obs) if self._seed_each else (envs, ())

    def close(self) -> None:
        self._envs.close()


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> GymnasiumEnv | WorkerEnv:
    """Build ``num_envs`` environments of ``config.id``; ``render`` lets the first one draw. ``reset`` seeds them."""
    with _one_line_errors(config.id):
        if config.simulator_threads > 1 and not render:
            return _in_workers(config, num_envs)
        return GymnasiumEnv(_vectorise(_source(config.id), config, num_envs, render), config.id)


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """What the making of an environment raises, as one line that names the absent package or the place."""
    from gymnasium.error import DependencyNotInstalled

    try:
        yield
    except DependencyNotInstalled as error:
        # Gymnasium's own message names the command.
        raise UserError(f"{name} cannot be made: {' '.join(str(error).split())}") from error
    except ModuleNotFoundError as error:
        raise UserError(
            f"{name} needs the package {error.name!r}; install it with: pip install {error.name}"
        ) from error
    except ImportError as error:
        raise UserError(f"{name} cannot be made: {' '.join(str(error).split())}") from error
    except UserError:
        raise
    except Exception as error:
        raise UserCodeError(named(error), place_of(error) or name) from error


def _in_workers(config: EnvConfig, num_envs: int) -> WorkerEnv:
    """Single environments in worker processes; one is made here for a moment, to know its spaces."""
    env = _single(_source(config.id), config)
    try:
        limit = env.spec.max_episode_steps if env.spec is not None else None
        spec = EnvSpec(
            observation=observation_spec(env.observation_space),
            action=action_spec(env.action_space),
            tasks=(config.id,),
            steps_per_second=_steps_per_second(env.metadata),
        )
    finally:
        env.close()
    return WorkerEnv(
        partial(make_worker_env, config),
        spec,
        num_envs,
        workers=config.simulator_threads,
        first_limits=arrivals.first_limits(num_envs, limit) if config.stagger and limit is not None else None,
    )


def make_worker_env(config: EnvConfig, task: str) -> WorkerGymnasium:
    with _one_line_errors(task):
        return WorkerGymnasium(_single(_source(task), config), task)


class WorkerGymnasium:
    """One Gymnasium environment as a worker plays it."""

    def __init__(self, env: gymnasium.Env, name: str) -> None:
        from gymnasium.vector.utils import create_empty_array

        self._env, self.name = env, name
        self._observation: Any = None
        self._parts, self._action = observation_spec(env.observation_space), action_spec(env.action_space)
        self._batch: Any = create_empty_array(env.observation_space, 1)

    @_explained
    def reset(self, seed: int) -> Observation:
        observation, _ = self._env.reset(seed=seed)
        return self._observe(observation)

    @_explained
    def step(self, action: np.ndarray) -> Outcome:
        observation, reward, terminated, truncated, _ = self._env.step(self._action.native(action[None])[0])
        return Outcome(
            observation=self._observe(observation),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
        )

    def _observe(self, observation: Any) -> Observation:
        from gymnasium.vector.utils import concatenate

        self._observation = observation
        batch = concatenate(self._env.observation_space, [observation], self._batch)
        return {name: array[0] for name, array in encoded(self._parts, batch).items()}

    def render(self) -> np.ndarray:
        raise UserError("environments in worker processes were not made for rendering; make them with render=True")

    def played(self) -> tuple[Any, Sequence[Any]]:
        return self._env, [self._observation]

    def close(self) -> None:
        self._env.close()


def _source(name: str) -> Registration | Callable[..., gymnasium.Env]:
    """What makes the environment of that name: its registration, or a class or function of the user's module."""
    import gymnasium

    if name not in gymnasium.registry and (right := respelt(name)) is not None:
        raise UserError(f"unknown environment {name!r}; did you mean {right!r}?")
    module: ModuleType | None = None
    if ":" in name:
        module_name, name = name.split(":", 1)
        module = import_module(module_name)
    if name in gymnasium.registry:
        return gymnasium.spec(name)
    source = getattr(module, name, None)
    if callable(source):
        return source
    defined = vars(module).items() if module else ()
    classes = [key for key, value in defined if inspect.isclass(value) and issubclass(value, gymnasium.Env)]
    raise unknown("environment", name, [*gymnasium.registry, *classes])


def _vectorise(
    source: Registration | Callable[..., gymnasium.Env], config: EnvConfig, num_envs: int, render: bool
) -> gymnasium.vector.VectorEnv:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec as Registration
    from gymnasium.vector import SyncVectorEnv

    limit = _limit(config)
    if isinstance(source, Registration) and _has_vector_version(source, limited=bool(limit), render=render):
        envs = gymnasium.make_vec(source, num_envs, vectorization_mode="vector_entry_point", **limit)
        if "autoreset_mode" in envs.metadata or source.entry_point is None:
            return envs
        envs.close()

    def create(index: int) -> gymnasium.Env:
        # Only the first environment is ever drawn.
        env = _single(source, config, render and index == 0)
        whole = env.spec.max_episode_steps if env.spec is not None else None
        if config.stagger and whole is not None and (first := arrivals.first_limits(num_envs, whole)[index]):
            return _first_episode_limit(env, int(first))
        return env

    creators = [partial(create, index) for index in range(num_envs)]
    # Without copies: the contract lets an observation change with the next call.
    return SyncVectorEnv(creators, copy=False)


def _single(
    source: Registration | Callable[..., gymnasium.Env], config: EnvConfig, render: bool = False
) -> gymnasium.Env:
    """One environment with its time limit."""
    import gymnasium
    from gymnasium.envs.registration import EnvSpec as Registration

    drawing: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    limit = _limit(config)
    if isinstance(source, Registration):
        return _with_spaces(gymnasium.make(source, disable_env_checker=True, **limit, **drawing))
    drawing = drawing if _accepts(source, "render_mode") else {}
    try:
        inspect.signature(source).bind(**drawing)
    except TypeError as error:
        place = defined(source.__init__ if inspect.isclass(source) else source) or defined(source) or config.id
        raise UserCodeError(f"{error}; --env may name a function of that module that passes it", place) from error
    env = source(**drawing)
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{config.id} made a {type(env).__name__}; it must make a gymnasium.Env")
    return gymnasium.wrappers.TimeLimit(_with_spaces(env), **limit) if limit else _with_spaces(env)


def _with_spaces(env: gymnasium.Env) -> gymnasium.Env:
    import gymnasium

    kind = type(env.unwrapped)
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gymnasium.Space):
            raise UserCodeError(f"it has no {name}, which must be a space of Gymnasium", defined(kind) or kind.__name__)
    return env


def _steps_per_second(metadata: dict[str, Any]) -> float | None:
    speed = metadata.get("render_fps")
    return float(speed) if isinstance(speed, int | float) and speed > 0 else None


def _limit(config: EnvConfig) -> dict[str, Any]:
    return {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}


def _first_episode_limit(env: gymnasium.Env, limit: int) -> gymnasium.Env:
    """Truncate the first episode, and only that, after ``limit`` steps."""
    import gymnasium

    class FirstEpisodeLimit(gymnasium.Wrapper):
        steps = 0

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            observation, reward, terminated, truncated, info = self.env.step(action)
            self.steps += 1
            return observation, reward, terminated, truncated or self.steps == limit, info

    return FirstEpisodeLimit(env)


def _has_vector_version(registration: Registration, *, limited: bool, render: bool) -> bool:
    """Whether an id's own vectorised implementation can do what is asked.

    It must take the time limit, since it cannot be wrapped. To draw one environment, single environments are better:
    a vectorised one draws all of them.
    """
    from gymnasium.envs.registration import load_env_creator

    entry = registration.vector_entry_point
    if entry is None or registration.additional_wrappers:
        return False
    if registration.entry_point is None:
        return True
    limited = limited or registration.max_episode_steps is not None
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    return not render and (not limited or _accepts(creator, "max_episode_steps"))


def _accepts(function: Callable[..., Any], keyword: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == keyword or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
