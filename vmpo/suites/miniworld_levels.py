"""The levels of the lab that runs here: their maps, what lies in them, what is said and what is paid.

A level is a text map and a generator of trials. An episode has a fixed number of frames; in it, one trial follows
another as soon as its goal is touched, right or wrong, or its time is over. Nothing here draws, so that rules can be
played without OpenGL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

Shape: TypeAlias = Literal["box", "ball", "pillar"]

NORTH, EAST = math.pi / 2, 0.0
"""Headings in radians. North is up in a text map, which is -z; east is right, +x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """An object that is touched by walking into it."""

    shape: Shape
    colour: str
    x: float
    z: float
    reward: float = 0.0
    effect: Literal["ends trial", "vanishes", "none"] = "ends trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one attempt begins. It ends where a thing says so, or where no vanishing thing with a reward is left."""

    things: tuple[Thing, ...]
    instruction: str
    x: float
    z: float
    heading: float
    frames: int | None = None
    """After so many the next trial begins, whatever was touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    map: tuple[str, ...]
    """Rows from north to south: # is solid, any other letter a cell of floor with the walls of that letter."""
    cell: float
    """Width of a cell in metres."""
    walls: dict[str, str]
    """MiniWorld's texture of each letter's walls."""
    episode_frames: int
    trials: Callable[[np.random.Generator], Iterator[Trial]]
    """The trials of one episode, without an end."""

    def blocked(self, x: float, z: float) -> bool:
        return self.map[int(z // self.cell)][int(x // self.cell)] == "#"

    def cells(self, letters: str) -> list[tuple[float, float]]:
        """Centres of the cells with these letters."""
        return [
            ((column + 0.5) * self.cell, (row + 0.5) * self.cell)
            for row, line in enumerate(self.map)
            for column, letter in enumerate(line)
            if letter in letters
        ]


def choose_colour(rng: np.random.Generator) -> Iterator[Trial]:
    """Two boxes of different colours, of which the instruction names one."""
    colours = ("red", "green", "blue")
    while True:
        target, other = rng.choice(3, size=2, replace=False)
        yield _choice(
            rng,
            ("box", colours[target]),
            ("box", colours[other]),
            f"go to the {colours[target]} box",
            reward=1.0,
            usually_left=target < other,
        )


def choose_shape(rng: np.random.Generator) -> Iterator[Trial]:
    """Two things of one colour but different shapes, of which the instruction names one."""
    shapes: tuple[Shape, ...] = ("box", "ball", "pillar")
    while True:
        target, other = rng.choice(3, size=2, replace=False)
        colour = str(rng.choice(("red", "green", "blue", "yellow")))
        yield _choice(
            rng,
            (shapes[target], colour),
            (shapes[other], colour),
            f"touch the {shapes[target]}",
            reward=10.0,
            usually_left=target < other,
        )


def remember_sign(rng: np.random.Generator) -> Iterator[Trial]:
    """A T-maze with a like box in either arm. A sign in a niche by the start, out of sight at the junction, tells which
    one pays: red means left, blue means right."""
    level = LEVELS["remember_sign"]
    [(left_x, left_z)], [(right_x, right_z)] = level.cells("l"), level.cells("r")
    [(sign_x, sign_z)], [(x, z)] = level.cells("n"), level.cells("s")
    while True:
        pays_left = bool(rng.integers(2))
        yield Trial(
            things=(
                Thing(shape="box", colour="yellow", x=left_x, z=left_z, reward=5.0 if pays_left else -2.5),
                Thing(shape="box", colour="yellow", x=right_x, z=right_z, reward=-2.5 if pays_left else 5.0),
                Thing(shape="pillar", colour="red" if pays_left else "blue", x=sign_x, z=sign_z, effect="none"),
            ),
            instruction="follow the sign",
            x=x,
            z=z,
            heading=EAST + rng.uniform(-0.2, 0.2),
        )


def collect_balls(rng: np.random.Generator) -> Iterator[Trial]:
    """Green balls pay and red ones cost; all lie anew once the green ones are gone."""
    cells = LEVELS["collect_balls"].cells(".")
    while True:
        places = [cells[i] for i in rng.permutation(len(cells))]
        yield Trial(
            things=tuple(
                Thing(shape="ball", colour=colour, x=x, z=z, reward=reward, effect="vanishes")
                for (x, z), (colour, reward) in zip(
                    places[1:], [("green", 0.2)] * 4 + [("red", -0.2)] * 3, strict=False
                )
            ),
            instruction="collect the green balls",
            x=places[0][0],
            z=places[0][1],
            heading=rng.uniform(-math.pi, math.pi),
        )


def explore_rooms(rng: np.random.Generator) -> Iterator[Trial]:
    """One box in one of four rooms, in the same place all episode long. The agent begins in another room each time, and
    a ball in each of those pays a little."""
    level = LEVELS["explore_rooms"]
    home = str(rng.choice(list("abcd")))
    goal_x, goal_z = level.cells(home)[rng.integers(4)]
    goal = Thing(shape="box", colour="yellow", x=goal_x, z=goal_z, reward=20.0)
    while True:
        others = [rng.permutation(level.cells(room)) for room in "abcd" if room != home]
        x, z = others[rng.integers(3)][1]
        yield Trial(
            things=(
                goal,
                *(
                    Thing(shape="ball", colour="green", x=float(x), z=float(z), reward=2.0, effect="vanishes")
                    for (x, z), *_ in others
                ),
            ),
            instruction="find the yellow box",
            x=float(x),
            z=float(z),
            heading=rng.uniform(-math.pi, math.pi),
        )


def _choice(
    rng: np.random.Generator,
    target: tuple[Shape, str],
    other: tuple[Shape, str],
    instruction: str,
    *,
    reward: float,
    usually_left: bool,
) -> Trial:
    """Two things close ahead of the agent, left and right: the target pays, the other costs as much.

    Who does not read gains nothing, whichever way he goes. Four times out of five they stand in their usual order, so
    that who reads gains something before he has learned to look as well, and all of it once he has. Who strays stands
    before the next two soon.
    """
    side = -1 if usually_left == (rng.random() < 0.8) else 1
    things = [
        Thing(
            shape=shape,
            colour=colour,
            x=3.0 + at * side + rng.uniform(-0.1, 0.1),
            z=2.4 + rng.uniform(-0.1, 0.1),
            reward=paid,
        )
        for (shape, colour), at, paid in ((target, 0.75, reward), (other, -0.75, -reward))
    ]
    return Trial(
        things=tuple(things),
        instruction=instruction,
        x=3.0 + rng.uniform(-0.2, 0.2),
        z=3.4 + rng.uniform(-0.1, 0.1),
        heading=NORTH + rng.uniform(-0.1, 0.1),
        frames=48,
    )


_ROOM_4 = ("######", "#....#", "#....#", "#....#", "#....#", "######")
_ROOM_5 = ("#######", "#.....#", "#.....#", "#.....#", "#.....#", "#.....#", "#######")

LEVELS: dict[str, Level] = {
    "choose_colour": Level(map=_ROOM_4, cell=1.0, walls={".": "stucco"}, episode_frames=600, trials=choose_colour),
    "choose_shape": Level(map=_ROOM_4, cell=1.0, walls={".": "cardboard"}, episode_frames=600, trials=choose_shape),
    "remember_sign": Level(
        map=(
            "#######",
            "##l.r##",
            "###.###",
            "###s.n#",
            "#######",
        ),
        cell=1.2,
        walls={".": "wood", "l": "wood", "r": "wood", "s": "wood", "n": "wood"},
        episode_frames=1200,
        trials=remember_sign,
    ),
    "collect_balls": Level(
        map=_ROOM_5, cell=1.0, walls={".": "picket_fence"}, episode_frames=800, trials=collect_balls
    ),
    "explore_rooms": Level(
        map=(
            "#######",
            "#aa#bb#",
            "#aa.bb#",
            "#.###.#",
            "#cc.dd#",
            "#cc#dd#",
            "#######",
        ),
        cell=1.1,
        walls={"a": "airduct_grate", "b": "wood", "c": "metal_grill", "d": "marble", ".": "concrete"},
        episode_frames=1200,
        trials=explore_rooms,
    ),
}
