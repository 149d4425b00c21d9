"""From stored uint8 images to the views that an encoder sees."""

from varcon.augment.policies import POLICIES, augment, draw_views, prepare
from varcon.augment.settings import AugmentSettings

__all__ = ["POLICIES", "AugmentSettings", "augment", "draw_views", "prepare"]
