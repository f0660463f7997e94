"""The report's words: for every section what it asks, how to read its figures, and what is published.

Published findings are those of "Block-Recurrent Dynamics in Vision Transformers" (arXiv 2512.19941, ICLR
2026), on DINOv2 ViT-B/14 with registers and ImageNet-1k.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CONVERGENCE",
    "DEMO",
    "PHASES",
    "PROBES",
    "R2",
    "RANK",
    "SIMILARITY",
    "SPEED",
    "TRAINING",
    "Prose",
]


@dataclass(frozen=True, kw_only=True)
class Prose:
    """What stands around one section's figures."""

    title: str
    asks: str
    reading: str
    published: str = ""


def _flow(text: str) -> str:
    """A paragraph on one line."""
    return " ".join(text.split())


DEMO = _flow("""
    The demo's teacher is a DINOv2 ViT-S/14 without registers that was fine-tuned for another task, fed
    crops of a few photographs; it is not Meta's release and not the ViT-B of the paper. Where it differs
    from the published findings, the teacher and the images are the first things to suspect.
""")

SIMILARITY = Prose(
    title="Layer similarity",
    asks=_flow("""
        Which layers say nearly the same about an image? S is the mean cosine between two layers, over
        images and over two vectors of each: the CLS token and the mean patch, registers left out.
    """),
    reading=_flow("""
        The deeper the blue, the more alike two layers are; the page's own colour is 0, orange is opposed.
        Blue squares along the diagonal are runs of layers that one block, applied again and again, may
        stand in for.
    """),
    published=_flow("""
        A few blue squares with sharp borders, and a last layer that stands apart from all others. On DINOv2
        ViT-B/14 neighbouring layers have S from 0.95 down to 0.75, and 0.25 between layers 11 and 12.
    """),
)

PHASES = Prose(
    title="Phases",
    asks=_flow("""
        If k blocks, each applied again and again, are to stand in for all layers, where should one hand
        over to the next? The cuts that minimise the cost are found exactly, over all divisions into k runs.
    """),
    reading=_flow("""
        A cut that nearly all resamples share is a property of the teacher; one that half of them share is a
        choice. Where best and second best lie close, another division would do as well. The cost grows with
        k, so it does not choose k by itself: look for the k after which it grows faster.
    """),
    published=_flow("""
        DINOv2 ViT-B/14: cut after 7 for k = 2, after 7 and 10 for k = 3, after 4, 7 and 10 for k = 4. The
        cost ncut gives these; the plain sum of distances inside the phases gives 5 and 9 for k = 3.
    """),
)

CONVERGENCE = Prose(
    title="Direction convergence",
    asks=_flow("""
        When does a token point where it will point in the end? The cosine between its direction at a layer
        and its own direction at the last layer, a mean over tokens and images for each kind.
    """),
    reading=_flow("""
        A smooth S-curve up to 1 is a direction that settles as if it followed one flow. A curve that stays
        near 0 and jumps at the end is a last layer that turns everything.
    """),
    published="An S-curve to 1 for all token kinds, while norms grow: directions settle, lengths do not.",
)

SPEED = Prose(
    title="Angular speed",
    asks=_flow("""
        How far does a token turn from one layer to the next? The angle between its consecutive directions,
        a mean over tokens and images for each kind.
    """),
    reading=_flow("""
        Dotted lines are the phase boundaries. If phases are real, the turns just after them should be
        sharper than the others.
    """),
    published=_flow("""
        Registers are slow, patches in between, CLS turns sharply at the end; jumps sit at the phase
        boundaries.
    """),
)

RANK = Prose(
    title="Rank of the updates",
    asks=_flow("""
        Do the tokens of an image move each its own way, or together along a few directions? The rank of the
        matrix of direction updates (tokens by width) of one image, in three conventions.
    """),
    reading=_flow("""
        Stable rank: all energy over that of the strongest direction. Entropy: e to the entropy of the
        singular values s, scaled to sum to 1, and of their squares; both are called effective rank in the
        literature. A rank of 1 is all tokens moving alike.
    """),
    published="The rank of the updates falls to about 6 in the late layers.",
)

TRAINING = Prose(
    title="Training",
    asks="Did training get as far as it could? The loss of every stage against its steps.",
    reading="Stages have losses of their own: heights compare within one figure, not between figures.",
)

R2 = Prose(
    title="How closely the surrogate follows",
    asks=_flow("""
        Rolled out from layer 0 alone, does the surrogate reproduce every layer of the teacher, not only the
        last? R² for each layer and token kind, on rows of the test split.
    """),
    reading=_flow("""
        R² is 1 minus squared error over squared distance from the mean of each channel, over all rows and
        tokens of the kind: 1 is perfect, 0 no better than the mean. Kinds that vary little between images,
        such as CLS in early layers, are hard by this measure.
    """),
    published=_flow("""
        The claim is that every layer is reproduced, not only the output; figures by layer and token kind
        are not given there.
    """),
)

PROBES = Prose(
    title="What the surrogate is good for",
    asks=_flow("""
        Does a linear classifier on [CLS ; mean patch] of the last layer, after the teacher's final norm,
        work as well on the surrogate as on the teacher? Retention is the accuracy over the teacher's.
    """),
    reading=_flow("""
        The frozen head was fitted on the teacher and is applied unchanged: the strict test. The refitted
        head is fitted anew on each model: lenient, on easy tasks nearly vacuous. A surrogate counts only
        where it beats the baselines under both. Identity hands on layer 0; untrained blocks are the
        teacher's own, repeated.
    """),
    published=_flow("""
        ImageNet-1k, DINOv2 ViT-B/14: k = 2 keeps 96.1 %, k = 3 98.2 % and k = 4 98.5 % of the teacher's
        84.5 %, with the head tuned for the surrogate.
    """),
)
