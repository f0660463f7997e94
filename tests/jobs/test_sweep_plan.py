"""What a sweep's file becomes: grids, draws, cells and seeds, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from activault.jobs.chosen_weights import LAST, ChosenWeights
from activault.jobs.sweep_config import load_sweep
from activault.jobs.sweep_plan import PlannedRun, plan_runs
from activault.jobs.sweep_result import hash_of, job_hash
from activault.store import ConfigError

OTHERS = (ChosenWeights(ema=True), ChosenWeights(which="best"), ChosenWeights(which="best", ema=True))
SWEEPS = sorted((Path(__file__).parents[2] / "recipes" / "sweeps").glob("*.toml"))
RECIPE = """
store = "s.zarr"
num_phases = 3
[stage1]
steps = 100
warmup_steps = 5
[stage2]
steps = 200
warmup_steps = 5
"""

STUDY = {
    "blocks_from_random_seed=0": "457dbbc4",
    "k=3_full_length_seed=0": "7f5d7928",
    "k=3_full_length_seed=1": "37b72c57",
    "k=3_full_length_seed=2": "de6463cc",
    "ladder_1_teacher_forcing_only_seed=0": "24de9825",
    "ladder_2_+_annealed_roll-out_seed=0": "8d402ef6",
    "ladder_3_+_depth_conditioning_seed=0": "2693cc32",
    "ladder_4_+_token_weights_seed=0": "8ff4b1e7",
    "last_layer_alone_seed=0": "679ca8ab",
    "phases_num_phases=1_seed=0": "1073db27",
    "phases_num_phases=2_seed=0": "0b7a9cb6",
    "phases_num_phases=3_seed=0": "0fd7a4b3",
    "phases_num_phases=4_seed=0": "ecfdf7c3",
    "random_contiguous_phases_control_seed=0_seed=0": "639b7af0",
    "random_contiguous_phases_control_seed=1_seed=0": "097e4eb8",
    "random_contiguous_phases_control_seed=2_seed=0": "df242124",
    "shuffled_phases_control_seed=0_seed=0": "f8823edf",
    "shuffled_phases_control_seed=1_seed=0": "aae6040f",
    "shuffled_phases_control_seed=2_seed=0": "735a8168",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(RECIPE)
    return tmp_path


def planned(folder: Path, text: str) -> list[PlannedRun]:
    path = folder / "sweep.toml"
    path.write_text(f'recipe = "base.toml"\n{text}')
    return plan_runs(load_sweep(path), folder)


def test_a_grid_is_every_combination_with_every_seed(folder: Path) -> None:
    runs = planned(folder, "seeds = [0, 1]\n[grid]\nnum_phases = [2, 3]\nstage1.steps = [50, 60, 70]")
    assert len(runs) == len({run.name for run in runs}) == 12
    assert {(run.recipe.num_phases, run.recipe.stage1.steps, run.recipe.seed) for run in runs} == {
        (k, steps, seed) for k in (2, 3) for steps in (50, 60, 70) for seed in (0, 1)
    }
    assert runs[0].name == "num_phases=2_stage1.steps=50_seed=0"
    assert len({run.cell for run in runs}) == 6


def test_a_longer_search_begins_with_the_runs_of_the_shorter_one(folder: Path) -> None:
    keys = """
[random.keys]
stage1.learning_rate = { min = 1e-5, max = 1e-3, log = true }
stage2.steps = { min = 100, max = 300, integer = true }
model.depth = { choice = ["raw", "normalised", "none"] }
"""
    short, long = (planned(folder, f"[random]\ndraws = {draws}{keys}") for draws in (3, 20))
    assert [run.recipe for run in long[:3]] == [run.recipe for run in short]
    rates = [run.recipe.stage1.learning_rate for run in long]
    assert all(1e-5 <= rate <= 1e-3 for rate in rates)
    assert sum(rate < 1e-4 for rate in rates) > 4, "half of them are below the middle of the log scale"
    assert {run.recipe.model.depth for run in long} == {"raw", "normalised", "none"}
    assert all(100 <= run.recipe.stage2.steps <= 300 for run in long)
    other = planned(folder, f"[random]\ndraws = 3\nseed = 1{keys}")
    assert other[0].recipe != short[0].recipe


def test_cells_are_variants_with_names_and_seeds_of_their_own(folder: Path) -> None:
    runs = planned(
        folder,
        """
[set]
stage2.token_weights = "plain"
[[cells]]
name = "teacher forcing only"
set = { stage1.only_teacher_forcing = true, stage2.steps = 0 }
[[cells]]
name = "all"
seeds = [3, 4]
set = { stage2.token_weights = { cls = 1, registers = 0, patches = 1 } }
grid = { model.depth = ["none", "raw"] }
""",
    )
    assert [run.name for run in runs] == [
        "teacher_forcing_only_seed=0",
        *(f"all_model.depth={depth}_seed={seed}" for depth in ("none", "raw") for seed in (3, 4)),
    ]
    assert (runs[0].recipe.stage1.only_teacher_forcing, runs[0].recipe.stage2.steps) == (True, 0)
    assert runs[0].recipe.stage2.token_weights == "plain"
    assert runs[1].recipe.stage2.token_weights.cls == 1


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_that_comes_with_the_project_can_be_planned(path: Path) -> None:
    assert plan_runs(load_sweep(path), path.parent)


def test_overrides_can_be_typed_after_set(folder: Path) -> None:
    from activault.train import load_recipe

    for run in planned(folder, '[set]\nstore = "a b.zarr"\n[grid]\nstage2.token_weights = ["plain"]'):
        assert load_recipe(folder / "base.toml", run.overrides) == run.recipe
        assert 'store="a b.zarr"' in run.overrides


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\nstage1.stepz = [1]", r"run 'stage1\.stepz=1_seed=0' .*unknown key stage1\.stepz"),
        ("[grid]\nnum_phases = 3", r"grid key num_phases has a list of values; got 3"),
        ("sedes = [1]", r"sweep\.toml: unknown key sedes; keys here are recipe, seeds, set, grid"),
        (
            '[[cells]]\nname = "a"\nsteps = 3',
            r"unknown key cells\.0\.steps; keys here are name, set, grid, seeds",
        ),
        ("[[cells]]\nset = {}", r"key cells\.0\.name is missing; a sweep gives it"),
        ("[random]\nkeys = {}\ndraw = 1", r"key random\.draws is missing"),
        ('seeds = ["a"]', r"seeds\.0 = 'a' does not fit: "),
        ("seeds = []", r"seeds = \[\] does not fit: "),
        (
            "[set]\nseed = 3",
            r"seeds of runs are given as seeds = \[0, 1\]; the sweep sets the key seed itself",
        ),
        ('[[cells]]\nname = "a"\ngrid = { seed = [1, 2] }', r"seeds = \[0, 1\]; cell 'a' sets the key seed"),
        (
            '[grid]\nstage1.steps = [50]\n[[cells]]\nname = "a"\nset = { stage1.steps = 60 }',
            r"a key has its value from one place; cell 'a' has stage1\.steps in set and grid",
        ),
        (
            "[grid]\nstage1.steps = [50]\n[random]\ndraws = 1\nkeys = { stage1.steps = { choice = [1] } }",
            r"the sweep has stage1\.steps in grid and random",
        ),
        ('[set]\nsplit = "all"', r"a sweep measures on test rows, and split = 'all' trains on them"),
        ('[baselines]\nnames = ["mean"]', r"baselines\.names\.0 = 'mean' does not fit: .*'repeated'"),
        (
            '[baselines]\nnames = ["linear"]\nnum_phases = [0]',
            r"a baseline has at least 1 phase; got num_phases \[0\]",
        ),
        ('[baselines]\nkinds = ["linear"]', r"key baselines\.names is missing"),
        (
            "[random]\ndraws = 1\nkeys = { stage1.steps = { min = 3, max = 1 } }",
            r"has a choice, or a min below a max; got min 3\.0 and max 1\.0",
        ),
        (
            "[random]\ndraws = 1\nkeys = { stage1.steps = { choice = [3, 4], integer = true } }",
            r"a choice has no other keys; got integer beside it: leave one of them out",
        ),
        (
            "[random]\ndraws = 1\nkeys = { stage1.noise = { min = 0.2, max = 0.4, integer = true } }",
            r"between whole numbers; got min 0\.2 and max 0\.4: round them, or leave out integer",
        ),
        (
            '[baselines]\nnames = ["identity"]\nnum_phases = [2]',
            r"identity has no phases; got num_phases \[2\]: leave it out",
        ),
        (
            "[random]\ndraws = 1\nkeys = { stage1.steps = { min = 0, max = 1, log = true } }",
            r"on a log scale has a min above 0; got 0\.0",
        ),
        ('[[cells]]\nname = "a"\n[[cells]]\nname = "a"', r"'a_seed=0' comes twice: give its cells names"),
        ("[grid", r"a sweep is a TOML file; .*sweep\.toml is not"),
    ],
)
def test_faults_name_the_key_and_the_remedy(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(folder, text)


KEEPS = "[set]\nvalidation = 0.1\nstage2.validate_every = 10\nstage2.ema_decay = 0.9\n"


def test_a_cell_measures_other_weights_than_the_sweep(folder: Path) -> None:
    cells = '[[cells]]\nname = "a"\n[[cells]]\nname = "b"\nwhich = "last"\nema = false'
    runs = planned(folder, f'which = "best"\nema = true\n{KEEPS}{cells}')
    assert [(run.name, run.weights.name) for run in runs] == [("a_seed=0", "best_ema"), ("b_seed=0", "last")]
    assert [run.weights.suffix for run in runs] == ["_best_ema", ""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'which = "best"',
            r"run 'run_seed=0' .* which = 'best' is measured .* got stage2\.validate_every = 0",
        ),
        (
            "ema = true\n[set]\nstage2.steps = 0\nstage2.ema_decay = 0.9",
            r"ema = true is measured .* got stage1\.ema_decay = 0: set that, or leave such runs to a cell",
        ),
        ('which = "first"', r"which = 'first' does not fit: "),
    ],
)
def test_weights_that_no_run_will_have_are_refused(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(folder, text)


def test_what_is_measured_is_part_of_the_job() -> None:
    """Results of the last weights keep the hash that they had before others could be measured."""
    job = {"recipe_identity": {"seed": 0}, "store": "s.zarr", "probe": True, "device": "cpu"}
    old = "d47dfe87e2ec0a2a9787176bf595888261f85a1c79eae5bfdc709dca84d862f6"
    assert job_hash({**job, **LAST.to_job()}) == old
    assert len({old, *(job_hash({**job, **kind.to_job()}) for kind in OTHERS)}) == 4


def test_a_missing_sweep_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a sweep is a TOML file that can be read; got .*none\.toml"):
        load_sweep(tmp_path / "none.toml")


def test_long_names_stay_apart(folder: Path) -> None:
    values = ", ".join(f"'{'x' * 120}{number}'" for number in range(3))
    runs = planned(folder, f"[grid]\nstore = [{values}]")
    assert len({run.name for run in runs}) == 3
    assert all(len(run.name) < 120 for run in runs)


def test_lists_in_a_grid_make_runs_of_their_own(folder: Path) -> None:
    (folder / "base.toml").write_text(RECIPE.replace("num_phases = 3\n", ""))
    groups = [[[1, 2], [3]], [[1], [2, 3]]]
    runs = planned(folder, f"[grid]\ngroups = {groups}")
    assert [run.recipe.groups for run in runs] == [((1, 2), (3,)), ((1,), (2, 3))]
    assert len({run.name for run in runs}) == 2
    assert runs[0].cell == "groups=[[1, 2], [3]]"


def test_draws_of_a_control_are_one_configuration(folder: Path) -> None:
    cell = 'name = "random"\nset = { control = "random" }\ngrid = { control_seed = [0, 1] }'
    runs = planned(folder, f"[[cells]]\n{cell}")
    assert [run.name for run in runs] == ["random_control_seed=0_seed=0", "random_control_seed=1_seed=0"]
    assert [run.cell for run in runs] == ["random", "random"]


def test_baselines_come_last_one_a_number_of_phases(folder: Path) -> None:
    table = '[baselines]\nnames = ["identity", "repeated", "power"]\nnum_phases = [1, 3]'
    runs = planned(folder, f'set = {{ cost = "sum" }}\n{table}')
    assert [(run.name, run.cell) for run in runs[1:]] == [
        ("baseline_identity", "identity"),
        ("baseline_repeated_k=1", "untrained blocks k=1"),
        ("baseline_repeated_k=3", "untrained blocks k=3"),
        ("baseline_power_k=1", "power k=1"),
        ("baseline_power_k=3", "power k=3"),
    ]
    assert {run.baseline.cost for run in runs[1:] if run.baseline} == {"sum"}
    assert [run.num_steps for run in runs] == [500, 0, 0, 0, 0, 0]


def test_the_study_of_cifar_is_what_it_was() -> None:
    """Names and recipes, which runs that are made already go by; a change here makes them anew."""
    path = next(path for path in SWEEPS if path.stem == "cifar")
    runs = [run for run in plan_runs(load_sweep(path), path.parent) if run.baseline is None]
    told = {run.name: hash_of(run.recipe.identity())[:8] for run in runs}
    assert told == STUDY
