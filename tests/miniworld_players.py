"""Scripted players of the miniworld levels, who know the simulator's state: what is a level worth to whom?

``python tests/miniworld_players.py [episodes]`` prints the mean return of each on every level. Nothing is drawn.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable

import numpy as np

from vmpo.suites.lab import ACTIONS
from vmpo.suites.miniworld_game import BODY, REACH, Game
from vmpo.suites.miniworld_levels import LEVELS, Thing

FORWARD, LOOK_LEFT, LOOK_RIGHT, FORWARD_LEFT, FORWARD_RIGHT = 0, 6, 7, 10, 11
REPEAT = 4

Player = Callable[[Game, np.random.Generator], int]


def at_random(game: Game, rng: np.random.Generator) -> int:
    return int(rng.integers(len(ACTIONS)))


def informed(game: Game, rng: np.random.Generator) -> int:
    """Walks to the nearest of the things that pay most, around those that cost."""
    most = max(thing.reward for thing in game.things)
    paying = [thing for thing in game.things if thing.reward == most]
    return _towards(game, min(paying, key=lambda thing: math.dist((thing.x, thing.z), (game.x, game.z))))


def uninformed(game: Game, rng: np.random.Generator) -> int:
    """Walks as well, but knows neither the instruction nor the sign: takes the thing that is nearest at the start."""
    start = game.trial.x, game.trial.z
    goals = [thing for thing in game.things if thing.reward != 0]
    return _towards(game, min(goals, key=lambda thing: math.dist((thing.x, thing.z), start)))


PLAYERS: dict[str, Player] = {"random": at_random, "uninformed": uninformed, "informed": informed}


def returns(level: str, player: Player, episodes: int, seed: int = 0) -> list[float]:
    """Returns of whole episodes at the paper's repeat."""
    rng = np.random.default_rng(seed)
    results = []
    for _ in range(episodes):
        game = Game(LEVELS[level])
        game.reset(rng)
        total = 0.0
        while game.running:
            action = ACTIONS[player(game, rng)]
            total += sum(game.frame(action) for _ in range(REPEAT) if game.running)
        results.append(total)
    return results


def _towards(game: Game, target: Thing) -> int:
    x, z = next((point for point in _way(game, target) if _clear(game, *point, target)), (target.x, target.z))
    error = math.degrees(math.atan2(game.z - z, x - game.x) - game.heading)
    error = (error + 180) % 360 - 180
    if abs(error) > 25:
        return LOOK_LEFT if error > 0 else LOOK_RIGHT
    if abs(error) > 4:
        return FORWARD_LEFT if error > 0 else FORWARD_RIGHT
    return FORWARD


def _way(game: Game, target: Thing) -> list[tuple[float, float]]:
    """Points on the shortest way over the middles of cells, from the target back to the agent."""
    size = game.level.cell
    start, goal = ((int(x // size), int(z // size)) for x, z in ((game.x, game.z), (target.x, target.z)))
    avoided = {(int(t.x // size), int(t.z // size)) for t in game.things if t.reward < 0 and t is not target}
    came_from = {start: start}
    queue = deque([start])
    while queue and goal not in came_from:
        column, row = queue.popleft()
        for cell in ((column + 1, row), (column - 1, row), (column, row + 1), (column, row - 1)):
            if cell not in came_from and cell not in avoided and game.level.map[cell[1]][cell[0]] != "#":
                came_from[cell] = (column, row)
                queue.append(cell)
    points = [(target.x, target.z)]
    cell = goal
    while cell in came_from and cell != start:
        points.append(((cell[0] + 0.5) * size, (cell[1] + 0.5) * size))
        cell = came_from[cell]
    return points


def _clear(game: Game, x: float, z: float, target: Thing) -> bool:
    """May the agent walk there in a straight line?"""
    costly = [t for t in game.things if t.reward < 0 and t is not target]
    for share in np.linspace(0.0, 1.0, 20):
        px, pz = game.x + share * (x - game.x), game.z + share * (z - game.z)
        if share > 0 and any(game.level.blocked(px + dx, pz + dz) for dx in (-BODY, BODY) for dz in (-BODY, BODY)):
            return False
        if any((t.x - px) ** 2 + (t.z - pz) ** 2 < (REACH + 0.05) ** 2 for t in costly):
            return False
    return True


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"{'level':16}" + "".join(f"{name:>18}" for name in PLAYERS))
    for name in LEVELS:
        cells = [returns(name, player, count) for player in PLAYERS.values()]
        print(f"{name:16}" + "".join(f"{np.mean(c):11.1f} ± {np.std(c):4.1f}" for c in cells), flush=True)
