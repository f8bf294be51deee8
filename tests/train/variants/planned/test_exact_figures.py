"""The curve is the reweighting at each pass@1, and every arm is where its estimates are."""

import numpy as np
import pytest

from offleash.eval.report.figure_style import image
from offleash.eval.stats.exact_support import EPSILONS
from offleash.eval.stats.leash.tilt import leash_line
from offleash.train.variants.planned.exact import outcomes
from offleash.train.variants.planned.figures import LEASH, floors_figure, leash_figure
from offleash.train.variants.planned.verdicts import Trial, judge
from offleash.train.variants.plans import RULE, Plan


@pytest.fixture(scope="module")
def drawn(bandits):
    lab = bandits(np.random.default_rng(0), 40)
    arms = {"plain": (1.2, 1.6), "low_lr": (0.5, 1.2), "<b>new</b>": (1.3, 0.8)}
    trials = [
        Trial(name, name, "<" not in name, {s: outcomes(lab.path(lab.sharpened(*of, 0.2))) for s in range(3)})
        for name, of in arms.items()
    ]
    of = {name: ({},) for name in arms}
    plan = Plan("screen", "lab", {}, (0, 1, 2), {}, {"nscr": 1e-3}, 0.01, RULE, {}, {"<b>new</b>": of["<b>new</b>"]})
    return lab, judge(plan, trials)


def test_the_curve_is_the_line_from_the_base_on(drawn):
    lab, judged = drawn
    (axes,) = leash_figure(judged, lab.path()).axes
    curve = max(axes.lines, key=lambda line: len(line.get_xdata()))
    x, y = curve.get_xdata(), curve.get_ydata()
    assert (x[0], y[0]) == (pytest.approx(lab.path().correct_tp()[0].mean()), 0.0)
    for i in (10, 40, 60):
        expected = leash_line(lab.base_u, lab.problem_u, float(x[i])).support.units[1e-3].nscr
        assert y[i] == pytest.approx(expected)
    points = [(bar[0].get_xdata()[0], bar[0].get_ydata()[0]) for bar in axes.containers]
    e = EPSILONS.index(1e-3)
    assert points == [(arm.passed.value, arm.nscr_e[e].value) for arm in judged.arms]


def test_the_curve_reaches_down_to_an_arm_below_the_base(bandits):
    lab = bandits(np.random.default_rng(0), 40)
    run = outcomes(lab.path(lab.sharpened(-0.5, 1.2, 0.0)))
    plan = Plan("screen", "lab", {}, (0,), {}, {"nscr": 1e-3}, 0.01, RULE, {}, {})
    judged = judge(plan, [Trial("plain", "plain", True, {0: run})])
    (axes,) = leash_figure(judged, lab.path()).axes
    curve = max(axes.lines, key=lambda line: len(line.get_xdata()))
    assert curve.get_xdata()[0] == judged.arms[0].passed.value < lab.path().correct_tp()[0].mean()
    assert curve.get_ydata()[0] == judged.arms[0].line_e[EPSILONS.index(1e-3)].value < 0


def test_every_floor_has_the_arms_and_plains_line(drawn):
    _, judged = drawn
    (axes,) = floors_figure(judged).axes
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(lines["plain"]) == [x.value for x in judged.arms[0].nscr_e]
    assert list(lines[f"{LEASH} (plain's)"]) == [x.value for x in judged.arms[0].line_e]
    assert b"&lt;b&gt;new" in image(floors_figure(judged), "svg")
