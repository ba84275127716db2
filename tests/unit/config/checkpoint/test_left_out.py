"""Tensors of a checkpoint that a text model does not use."""

from stoker.config.checkpoint.left_out import layer_of, left_out


def test_a_module_of_drafts_is_known_by_its_name() -> None:
    drafts = ("mtp.fc.weight", "model.mtp.norm.weight", "model.mtp_block.0.mlp.weight", "mtp_dspark.norm.weight")
    others = ("model.norm.weight", "model.layers.0.mtpx.weight", "empty.mtp.weight")
    assert left_out((*drafts, *others), 1, ()) == dict.fromkeys(drafts, "draft layers")


def test_a_layer_after_the_last_drafts_if_it_has_the_projection() -> None:
    names = ("model.layers.1.eh_proj.weight_packed", "model.layers.1.mlp.weight", "model.layers.2.mlp.weight")
    assert set(left_out(names, 1, ())) == set(names[:2])
    assert left_out(names, 2, ()) == {}


def test_encoders_are_known_to_their_family() -> None:
    assert left_out(("visual.a", "model.visual.a"), 1, ("visual.",)) == {"visual.a": "encoders"}


def test_the_layer_of_a_tensor() -> None:
    layers = {"model.layers.7.a": 7, "model.language_model.layers.3.a": 3, "language_model.model.layers.2.a": 2}
    layers |= {"layers.12.a": 12, "blk.4.a": 4, "model.norm": None, "visual.layers.3.a": None}
    assert {name: layer_of(name) for name in layers} == layers
