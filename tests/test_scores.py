"""The paper's normalised scores and medians follow from the data file."""

from __future__ import annotations

import pytest

from vmpo.scores import benchmark_of, benchmarks

# Table of App. H: level, human-normalised IMPALA, human-normalised V-MPO.
PAPER = """
alien 13.55 30.50
amidar 10.89 24.38
assault 768.46 193.13
asterix 47.87 117.50
asteroids 5.90 4.85
atlantis 6086.50 5732.81
bank_heist 177.94 209.61
battle_zone 119.27 169.52
beam_rider 25.56 21.16
berzerk 35.68 51.87
bowling 29.43 3.27
boxing 775.00 832.50
breakout 1675.69 1385.42
centipede 39.76 9.31
chopper_command 52.29 53.66
crazy_climber 357.94 423.09
defender 244.78 604.01
demon_attack 4273.35 1104.56
double_dunk 809.09 1418.18
enduro 138.05 168.95
fishing_derby 213.77 236.79
freeway 108.45 112.16
frostbite 4.33 4.56
gopher 531.92 339.62
gravitar 29.01 92.88
hero 40.71 94.53
ice_hockey 132.23 180.17
jamesbond 360.12 1379.11
kangaroo 57.93 427.02
krull 762.53 539.67
kung_fu_master 196.11 170.66
montezuma_revenge 0.00 0.00
ms_pacman 24.77 38.36
name_this_game 59.33 121.64
phoenix 559.60 290.05
pitfall 3.35 3.39
pong 117.56 118.13
private_eye 0.11 0.11
qbert 40.24 113.86
riverraid 43.72 62.24
road_runner 362.91 651.67
robotank 282.47 459.79
seaquest 4.33 23.54
skiing 6.69 13.01
solaris 5.03 8.64
space_invaders 42.45 106.76
star_gunner 461.05 620.24
surround 75.76 84.85
tennis 152.90 302.58
time_pilot 440.77 1129.42
tutankham 132.59 155.70
up_n_down 1564.09 738.18
venture 0.00 0.00
video_pinball 339.02 1125.46
wizard_of_wor 152.55 174.73
yars_revenge 18.90 74.16
zaxxon 125.67 205.53
"""


def _paper_rows() -> list[tuple[str, float, float]]:
    rows = [line.split() for line in PAPER.strip().splitlines()]
    return [(level, float(impala), float(vmpo)) for level, impala, vmpo in rows]


def test_the_table_of_the_paper_has_57_levels() -> None:
    assert {level for level, _, _ in _paper_rows()} == set(benchmarks()["atari57"].levels)


@pytest.mark.parametrize(("agent", "column"), [("IMPALA", 1), ("V-MPO", 2)])
def test_every_normalised_value_of_the_paper_follows_from_the_data_file(agent: str, column: int) -> None:
    atari = benchmarks()["atari57"]
    for row in _paper_rows():
        ours = atari.normalised(row[0], atari.levels[row[0]].published[agent])
        assert ours == pytest.approx(row[column], abs=0.00501), row[0]


@pytest.mark.parametrize(("agent", "median"), [("IMPALA", 117.56), ("V-MPO", 155.70)])
def test_the_medians_of_the_paper_follow_from_the_data_file(agent: str, median: float) -> None:
    atari = benchmarks()["atari57"]
    returns = {level: reference.published[agent] for level, reference in atari.levels.items()}
    assert atari.summary(returns)["median"] == pytest.approx(median, abs=0.00501)


def test_the_lab_score_is_capped_per_level_before_the_mean() -> None:
    lab = benchmarks()["dmlab30"]
    first, second = list(lab.levels)[:2]
    human, random = lab.levels[first].human, lab.levels[second].random
    assert lab.summary({first: 10 * human, second: random}) == {"capped_mean": pytest.approx(50.0)}


def test_the_lab_has_thirty_levels() -> None:
    assert len(benchmarks()["dmlab30"].levels) == 30


def test_a_benchmark_is_found_by_its_tasks_alone() -> None:
    found = benchmark_of(["pong", "breakout"])
    assert found is not None
    assert found.name == "atari57"
    assert benchmark_of(["pong", "CartPole-v1"]) is None
    assert benchmark_of([]) is None


def test_no_level_yet_means_no_score() -> None:
    assert benchmarks()["atari57"].summary({}) == {}
