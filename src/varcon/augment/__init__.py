"""From stored uint8 images to the views that an encoder sees."""

from varcon.augment.policies import POLICIES, AugmentSettings, augment, draw_views, prepare

__all__ = ["POLICIES", "AugmentSettings", "augment", "draw_views", "prepare"]
