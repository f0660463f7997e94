"""Recipes: what a file and its overrides become, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from activault.store.errors import ConfigError
from activault.train.losses import TokenWeights
from activault.train.recipe import TrainRecipe, load_recipe, parse_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
TEXT = """
store = "s.zarr"
num_phases = 3
init = "teacher-middle"
[model]
depth = "none"
[stage1]
steps = 100
warmup_steps = 5
[stage2]
steps = 200
warmup_steps = 5
token_weights = { cls = 1, registers = 0, patches = 1 }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(TEXT)
    return path


def test_file_becomes_a_recipe(path: Path) -> None:
    recipe = load_recipe(path)
    assert (recipe.num_phases, recipe.cuts, recipe.cost) == (3, None, "ncut")
    assert (recipe.teacher_block, recipe.model.depth) == ("middle", "none")
    assert (recipe.stage1.steps, recipe.stage2.steps) == (100, 200)
    assert recipe.stage2.token_weights == TokenWeights(cls=1, registers=0, patches=1)


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_recipe_that_comes_with_the_project_loads(file: Path) -> None:
    recipe = load_recipe(file)
    assert recipe.stage1.steps > 0
    assert recipe.stage2.steps > 0


@pytest.mark.parametrize(("name", "cuts"), [("k2", [7]), ("k3", [7, 10]), ("k4", [4, 7, 10])])
def test_the_papers_recipes_are_the_defaults_but_for_model_and_schedule(name: str, cuts: list[int]) -> None:
    paper = load_recipe(next(file for file in RECIPES if file.stem == f"paper_{name}"))
    steps = {"steps": 312_500, "schedule": "reference"}
    model = {"depth": "raw", "mlp": "swiglu", "eps": 1e-5, "random_init": "reference"}
    assert paper == parse_recipe(
        {"store": "imagenet.zarr", "cuts": cuts, "model": model, "stage1": steps, "stage2": steps}
    )
    assert (paper.init, paper.stage1.warmup_steps, paper.stage2.warmup_steps) == ("random", 10_000, 10_000)


def test_defaults_are_the_papers_but_for_depth_and_mlp(path: Path) -> None:
    recipe = load_recipe(path, ["model={}"])
    assert (recipe.model.depth, recipe.model.mlp) == ("normalised", "gelu")
    for stage in (recipe.stage1, recipe.stage2):
        assert (stage.batch_size, stage.learning_rate, stage.weight_decay) == (64, 3e-4, 1e-4)
        assert (stage.floor, stage.clip, stage.loss) == (1e-6, 1.0, "raw")
    assert recipe.stage1.teacher_forcing == 0.25
    assert recipe.stage1.token_weights == "plain"
    assert recipe.stage1.last_phase_token_weights == TokenWeights(cls=0.34, registers=0.33, patches=0.33)
    default = load_recipe(
        path, ["stage2.token_weights={cls=0.45,registers=0.10,patches=0.45}"]
    ).stage2.token_weights
    assert default == type(recipe.stage2)(steps=0).token_weights


@pytest.mark.parametrize(
    ("override", "where", "value"),
    [
        ("stage2.steps=7", "stage2.steps", 7),
        ("seed = 3", "seed", 3),
        ("model.mlp=swiglu", "model.mlp", "swiglu"),
        ("stage2.noise=0.05", "stage2.noise", 0.05),
        ("stage1.horizon_start=2", "stage1.horizon_start", 2),
        ("stage2.precision=bfloat16", "stage2.precision", "bfloat16"),
        ("stage1.loss=cosine", "stage1.loss", "cosine"),
        ("stage2.targets=last", "stage2.targets", "last"),
        ("stage1.compile=true", "stage1.compile", True),
        ("model.mlp='swiglu_iso'", "model.mlp", "swiglu_iso"),
        ("stage1.learning_rate=1e-4", "stage1.learning_rate", 1e-4),
        ("stage2.token_weights=plain", "stage2.token_weights", "plain"),
        ("store=/data/some-store.zarr", "store", "/data/some-store.zarr"),
        ("store=~/my photos (2).zarr", "store", "~/my photos (2).zarr"),
        ("store=https://host/a%20b.zarr?key=x&y=@z", "store", "https://host/a%20b.zarr?key=x&y=@z"),
        ("stage1.token_weights.cls=0.5", "stage1.token_weights", None),
    ],
)
def test_overrides(path: Path, override: str, where: str, value: object) -> None:
    more = ["stage1.token_weights.registers=0", "stage1.token_weights.patches=1"] if value is None else []
    found: object = load_recipe(
        path, [override, *more, *(["stage2.warmup_steps=0"] if "steps" in override else [])]
    )
    for part in where.split("."):
        found = getattr(found, part)
    assert found == (TokenWeights(cls=0.5, registers=0, patches=1) if value is None else value)


def test_cuts_may_stand_for_num_phases() -> None:
    stage = {"steps": 0}
    recipe = parse_recipe({"store": "s", "cuts": [7, 10], "stage1": stage, "stage2": stage})
    assert (recipe.cuts, recipe.num_phases) == ((7, 10), None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stage2.stepz=3"], r"recipe\.toml: unknown key stage2\.stepz = 3; did you mean steps"),
        (["modle.mlp=gelu"], r"unknown key modle = \{'mlp': 'gelu'\}; did you mean model"),
        (["zzzzzz=1"], r"unknown key zzzzzz = 1; keys are store, seed, cuts"),
        (["stage1.token_weights={clz=1,registers=0,patches=1}"], r"stage1\.token_weights\.cls is missing"),
        (
            ["stage1.token_weights={cls=1,registers=0,patches=1,pathces=1}"],
            r"weights\.pathces = 1; did you mean patches",
        ),
        (
            ["stage1.token_weights=plane"],
            r"stage1\.token_weights = 'plane' does not fit: Input should be 'plain'",
        ),
        (
            ["stage1.token_weights={cls=0,registers=0,patches=0}"],
            r"stage1\.token_weights: token weights are not all 0",
        ),
        (
            ["model.depth=deep"],
            r"model\.depth = 'deep' does not fit: Input should be 'raw', 'normalised' or 'none'",
        ),
        (["stage1.steps=-3"], r"stage1\.steps = -3 does not fit: Input should be greater than or equal to 0"),
        (["stage1.learning_rate=nan"], r"stage1\.learning_rate = nan does not fit"),
        (["stage2.steps=5"], r"stage2: warmup_steps is below steps; got warmup_steps 5 and steps 5"),
        (["stage1.floor=1.0"], r"stage1: floor is at most learning_rate; got 1\.0 and 0\.0003"),
        (
            ["cuts=[3]"],
            r"recipe\.toml: one of cuts, num_phases and groups is given; got cuts \(3,\), num_phases 3",
        ),
        (
            ["nothing"],
            r"an override is key=value with a dotted key, such as stage2\.steps=100; got 'nothing'",
        ),
        (["stage1.noize=0.1"], r"unknown key stage1\.noize = 0\.1; did you mean noise"),
        (["stage2.ema=0.9"], r"unknown key stage2\.ema = 0\.9; did you mean"),
        (["stage1.accumulate=3"], r"stage1: batch_size is a multiple of accumulate; got 64 and 3"),
        (
            ["stage2.validate_every=5"],
            r"stage2\.validate_every needs rows that are held out; got validation = 0",
        ),
        (["stage2.precision=half"], r"stage2\.precision = 'half' does not fit"),
        (
            ["groups=[[1, 2]]"],
            r"one of cuts, num_phases and groups is given; got cuts None, num_phases 3, groups \(\(1, 2\),\)",
        ),
        (
            ["stage1.huber_delta=0.5"],
            r"stage1\.huber_delta = 0\.5 changes nothing: it is used with loss = 'huber', and that is 'raw'; "
            r"leave stage1\.huber_delta out or set the other",
        ),
        (
            ["stage2.horizon_growth=0.2"],
            r"stage2\.horizon_growth = 0\.2 .* with horizon_start, and that is none",
        ),
        (
            ["stage1.only_teacher_forcing=true", "stage1.horizon_start=2"],
            r"stage1\.horizon_start = 2 changes nothing: .* only_teacher_forcing = false, and that is true",
        ),
        (
            ["stage1.only_teacher_forcing=true", "stage1.teacher_forcing=0.5"],
            r"stage1\.teacher_forcing = 0\.5 changes nothing",
        ),
        (["control_seed=2"], r"control_seed = 2 changes nothing: it is used with control = 'random' or"),
        (["seed.x=1"], r"unknown key seed\.x|does not fit"),
        (["init.x=1"], r"--set init\.x=1: init is a value and has no keys"),
        (["seed=[1"], r"--set seed=\[1: the value is TOML"),
        (["cuts=7,10"], r"the value is TOML, such as .* or \[7, 10\]; Expected newline [^(]*$"),
        (["seed=1\nsplit='all'"], r"an override sets one key; got .*: give each its own key=value"),
        (["seed=true"], r"recipe\.toml: seed = true does not fit: true and false are for keys that are on"),
        (["stage1.steps=true"], r"recipe\.toml: stage1\.steps = true does not fit"),
        (["model.depth=false"], r"recipe\.toml: model\.depth = false does not fit"),
    ],
)
def test_faults_name_key_value_and_remedy(path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe(path, overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["stage1.huber_delta=1.0"],
        ["stage1.huber_delta=0.5", "stage1.loss=huber"],
        ["stage2.steps=0", "stage2.warmup_steps=0", "stage2.huber_delta=0.5"],
        ["stage1.horizon_growth=0.2", "stage1.horizon_start=2"],
        ["control_seed=2", "control=random"],
    ],
)
def test_keys_that_count_or_say_what_holds_anyway_are_taken(path: Path, overrides: list[str]) -> None:
    load_recipe(path, overrides)


def test_a_record_of_a_run_is_not_asked_for_keys_that_change_nothing(path: Path) -> None:
    """Versions before took them."""
    record = load_recipe(path).model_dump(mode="json")
    record["stage1"]["huber_delta"] = 0.5
    assert TrainRecipe.model_validate(record).stage1.huber_delta == 0.5


def test_missing_key_and_missing_file(path: Path, tmp_path: Path) -> None:
    path.write_text(TEXT.replace('store = "s.zarr"', ""))
    with pytest.raises(ConfigError, match=r"recipe\.toml: key store is missing"):
        load_recipe(path)
    with pytest.raises(
        ConfigError, match=r"a recipe is a TOML file that can be read; got .*none\.toml \(No such file"
    ):
        load_recipe(tmp_path / "none.toml")
    path.write_text("store = ")
    with pytest.raises(ConfigError, match=r"a recipe is a TOML file; .*recipe\.toml is not: Invalid value"):
        load_recipe(path)


def test_identity_leaves_the_stores_path_out_and_nothing_else(path: Path) -> None:
    recipe = load_recipe(path)
    assert load_recipe(path, ["store=elsewhere"]).identity() == recipe.identity()
    for override in (
        "seed=1",
        "stage1.clip=2.0",
        "model.depth=raw",
        "split=all",
        "validation=0.1",
        "control=random",
        "stage1.noise=0.1",
        "stage2.keep=2",
    ):
        assert load_recipe(path, [override]).identity() != recipe.identity()


def test_recipe_survives_json(path: Path) -> None:
    recipe = load_recipe(path)
    assert TrainRecipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_a_control_without_phases_to_find_is_refused() -> None:
    stage = {"steps": 0}
    with pytest.raises(
        ConfigError, match="a control is drawn for num_phases; got control 'random' without it"
    ):
        parse_recipe({"store": "s", "cuts": [7], "control": "random", "stage1": stage, "stage2": stage})


def test_the_identity_of_a_plain_recipe_is_that_of_the_first_version(path: Path) -> None:
    """Runs of then go on: keys that came later are not told while they say nothing."""
    identity = load_recipe(path).identity()
    assert sorted(identity) == [
        *("cost", "cuts", "init", "model", "num_phases", "seed", "split", "stage1", "stage2"),
    ]
    assert sorted(identity["model"]) == ["depth", "eps", "layer_scale", "mlp", "qkv_bias"]
    assert sorted(identity["stage2"]) == [
        *("batch_size", "beta2", "checkpoint_every", "clip", "floor", "learning_rate", "log_every", "loss"),
        *("steps", "token_weights", "warmup_steps", "weight_decay"),
    ]
