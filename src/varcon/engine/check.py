"""What can be known to fail, found before anything is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from varcon.augment import draw_views
from varcon.core import Data, InputError, Method
from varcon.engine.track import check_tracker
from varcon.layers import check_queues
from varcon.recipe import Recipe


def check_before_data(recipe: Recipe[Any], processes: int) -> None:
    """What needs no data to be known: reading them may take hours."""
    batch_size = recipe.train.batch_size
    if batch_size % processes:
        raise InputError(
            f"train.batch_size {batch_size} cannot be shared by {processes} processes; make it a multiple"
        )
    check_tracker(recipe)


@torch.no_grad()
def check(method: Method, recipe: Recipe[Any], data: Data, processes: int) -> None:
    """The method can be trained on the data as the recipe says, by so many processes."""
    batch_size = recipe.train.batch_size
    if batch_size > len(data.train):
        raise InputError(
            f"train.batch_size is {batch_size} but there are only {len(data.train)} training images; lower it"
        )
    check_before_data(recipe, processes)
    if method.uses_labels and len(data.classes) < 2:
        raise InputError(
            f"method {recipe.method_name} tells classes apart and the data have one alone; "
            "give it two or more"
        )
    check_queues(method, batch_size)
    check_views(method, recipe)
    normalises = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in method.modules())
    if normalises and batch_size < 2 * processes:
        raise InputError(
            f"train.batch_size is {batch_size}, but batch normalisation needs at least 2 images in each "
            f"process; raise it to {2 * processes} or more"
        )
    views = draw_views(data.train.images[:1], recipe.augment, data.mean, data.std, torch.Generator())
    encoder = method.encoder.eval()  # which leaves batch statistics alone
    for view in views:
        shape = list(encoder(view).shape)
        if shape != [1, encoder.features]:
            raise InputError(
                f"the encoder makes features of shape {shape} from one image and says it makes "
                f"{encoder.features}; correct its attribute `features`"
            )
    encoder.train()


def check_views(method: Method, recipe: Recipe[Any]) -> None:
    """A view too many would be paid for and not looked at; one too few has nothing to be compared with."""
    name, views, small_views = recipe.method_name, recipe.augment.views, recipe.augment.small_views
    least, most = method.least_views, method.most_views
    if views < least or (most is not None and views > most):
        wanted = least if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        raise InputError(
            f"augment.views is {views}, but method {name} compares {wanted} views of an image; "
            f"set it to {wanted}"
        )
    if small_views and not method.takes_small_views:
        raise InputError(
            f"augment.small_views is {small_views}, but method {name} takes no small views; set it to 0"
        )
