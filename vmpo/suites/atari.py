"""Atari 2600 games on the Arcade Learning Environment's own vector environment, which preprocesses in C++ threads.

The protocol is DeepMind's (Mnih et al. 2015, and Table 6 of V-MPO): gray 84x84 images, each the maximum of the last
two frames, the last four stacked; actions repeated for four frames; up to 30 no-ops at the start of an episode, and no
FIRE, which the agent has to find by itself; a game, not a life, is an episode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vmpo.config import EnvConfig
from vmpo.errors import missing_extra, unknown
from vmpo.records import ArraySpec, DiscreteActions, EnvSpec, Timestep
from vmpo.suites import arrivals

SIZE = 84
"""Height and width of an observation in pixels."""

NUM_ACTIONS = 18
"""Of the console's joystick."""

FRAMES_PER_SECOND = 60
"""Of the console."""


def make(config: EnvConfig, num_envs: int, seed: int, render: bool = False) -> AtariEnv:
    """Build ``num_envs`` copies of the game ``config.id``; ``reset`` seeds them."""
    return AtariEnv(config, num_envs, render)


class AtariEnv:
    """Copies of one game. The simulator resets in the call after an end, and hands over new arrays at each call."""

    def __init__(self, config: EnvConfig, num_envs: int, render: bool = False) -> None:
        game = rom_name(config.id)
        self._config, self.num_envs = config, num_envs
        self._ale = _simulator(
            game, config, num_envs, stack_num=config.frame_stack, num_threads=config.simulator_threads
        )
        # The same game in colour, played in step with environment 0: equal seeds and actions give equal frames.
        self._colour: Any = None
        if render:
            self._colour = _simulator(
                game, config, 1, stack_num=1, num_threads=1, grayscale=False, img_height=210, img_width=160
            )
        self._picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        self._resetting = np.zeros(num_envs, np.bool_)
        self._lives = np.zeros(num_envs, np.int32)
        self._choices = np.zeros(num_envs, np.int64)
        self._numbers = np.arange(self._ale.single_action_space.n)
        if config.full_action_set and len(self._numbers) < NUM_ACTIONS:
            self._numbers = _full_action_set(game)
        shape = (config.frame_stack, SIZE, SIZE)
        self.spec = EnvSpec(
            observation={"pixels": ArraySpec(shape=shape, dtype=np.dtype(np.uint8), kind="pixels", layout="CHW")},
            action=DiscreteActions(sizes=(len(self._numbers),)),
            tasks=(game,),
            action_repeat=config.action_repeat,
            steps_per_second=FRAMES_PER_SECOND / config.action_repeat,
        )

    def reset(self, seed: int) -> Timestep:
        """Start all games anew, each with its own number of no-ops; the same seed gives the same stream."""
        seeds = np.array(arrivals.env_seeds(seed, self.num_envs))
        pixels, info = self._ale.reset(seed=seeds)
        self._resetting = np.zeros(self.num_envs, np.bool_)
        self._lives = info["lives"]
        self._draw(pixels, self._colour.reset(seed=seeds[:1])[0] if self._colour else None)
        return arrivals.opening({"pixels": pixels}, self.num_envs)

    def step(self, actions: np.ndarray) -> Timestep:
        self.send(actions)
        return self.receive()

    def send(self, actions: np.ndarray) -> None:
        """Let the simulator's threads go on with these actions."""
        self._choices = self._numbers[actions[:, 0]]
        self._ale.send(self._choices)

    def receive(self) -> Timestep:
        """Wait for the arrivals of the actions that were sent."""
        pixels, score, terminated, truncated, info = self._ale.recv()
        timestep = arrivals.next_step({"pixels": pixels}, score, terminated, truncated, resetting=self._resetting)
        life_lost = (info["lives"] < self._lives) & timestep.valid & ~timestep.ended
        self._resetting, self._lives = timestep.ended, info["lives"]
        self._draw(pixels, self._colour.step(self._choices[:1])[0] if self._colour else None)
        return replace(
            timestep,
            reward=np.clip(timestep.score, -1.0, 1.0) if self._config.clip_rewards else timestep.score,
            discount=np.where(life_lost, np.float32(self._config.life_loss_discount), timestep.discount),
        )

    def _draw(self, pixels: np.ndarray, colour: np.ndarray | None) -> None:
        """Keep environment 0's newest frame."""
        self._picture = pixels[0, -1, :, :, None] if colour is None else colour[0, -1]

    def render(self) -> np.ndarray:
        """The game's picture in colour where it was made for rendering, otherwise what the agent sees."""
        return np.array(np.broadcast_to(self._picture, (*self._picture.shape[:2], 3)))

    def close(self) -> None:
        self._ale.close()
        if self._colour:
            self._colour.close()


def rom_name(name: str) -> str:
    """The ALE's name of a game, which is also that of ``data/atari57.csv``, from any usual spelling of it."""
    try:
        from ale_py import roms
    except ImportError as error:
        raise missing_extra("ale-py", "atari") from error

    games = {game.replace("_", ""): game for game in roms.get_all_rom_ids()}
    plain = name.replace("_", "").replace(" ", "").lower()
    if plain not in games:
        raise unknown("Atari game", name, games.values())
    return games[plain]


def _full_action_set(game: str) -> np.ndarray:
    """For each of the console's 18 actions its number in the game's own set.

    All games of the benchmark know all 18 but Skiing, which has no FIRE: there it is the move without it.
    """
    from ale_py import Action, ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.loadROM(roms.get_rom_path(game) or "")
    known = [action.name for action in ale.getLegalActionSet()]
    names = [action.name for action in sorted(Action.__members__.values(), key=lambda action: action.value)]
    return np.array(
        [known.index(name if name in known else name.removesuffix("FIRE") or "NOOP") for name in names[:NUM_ACTIONS]]
    )


def _simulator(game: str, config: EnvConfig, num_envs: int, **options: Any) -> Any:
    """The ALE's vector environment under the protocol; rewards and lives are left to the adapter."""
    from ale_py import AtariVectorEnv

    frames = config.max_frames
    if config.max_episode_steps is not None:
        frames = min(frames, config.max_episode_steps * config.action_repeat)
    return AtariVectorEnv(
        game,
        num_envs,
        max_num_frames_per_episode=frames,
        frameskip=config.action_repeat,
        maxpool=True,
        noop_max=config.noop_max + 1,  # the ALE draws a number below its limit
        repeat_action_probability=config.sticky_actions,
        full_action_space=config.full_action_set,
        episodic_life=False,
        reward_clipping=False,
        use_fire_reset=False,
        **{"img_height": SIZE, "img_width": SIZE, **options},
    )
