"""Studies of seconds, for tests."""

RECIPE = """
title = "Tiny"
baseline = "Dice"
folds = [0, 1]
seeds = [0]

[train]
folds = 3
size = 32
width = 4
depth = 2
epochs = 2
batch = 4
surfaces = false
save_every = 0

[tune]
nested = true

[datasets.lesions]
generate = { count = 18, size = 32, seed = 1 }

[models.unet]

[losses]
"Dice" = "DiceLoss(batch=True)"
"PolyDice-1" = { loss = "PolyDice1Loss({epsilon}, batch=True)", epsilon = [-0.2, 0.5] }
"""

# Four runs choose the rate of Dice; then each loss has two folds of one replicate.
TUNED = (
    RECIPE.replace("seeds = [0]", "replicates = 1")
    .replace("nested = true", "rate = [0.01, 0.1]")
    .replace("{epsilon}", "0.5")
    .replace("epsilon = [-0.2, 0.5]", "rate = 0.05")
)
