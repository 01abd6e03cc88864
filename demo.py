"""`make demo`: a small U-Net learns generated lesions with Dice and with PolyDice-1, three seeds each, on the CPU.

Both losses see the same images and start from the same weights in each seed, so their runs can be compared in pairs.
The images are made up: what this shows is that the losses train a network, not which one is better on real ones.
"""

import time
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydice import DiceLoss, PolyDice1Loss

SEEDS = (0, 1, 2)
LOSSES: dict[str, nn.Module] = {"Dice": DiceLoss(), "PolyDice-1, ε = 0.5": PolyDice1Loss(epsilon=0.5)}
SIZE, TRAINING, HELD_OUT = 64, 128, 64  # pixels along an edge, images
EPOCHS, BATCH, RATE = 12, 8, 1e-2
T_95 = 4.303  # 97.5 % quantile of Student's t with two degrees of freedom: three pairs


def lesions(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` images `[count, 1, SIZE, SIZE]` of smooth texture and noise, and labels: 1 in one to three ellipses."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    coarse = torch.randn(count, 1, SIZE // 8, SIZE // 8, generator=generator)
    texture = F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic")
    noise = torch.randn(count, 1, SIZE, SIZE, generator=generator)

    axis = torch.arange(SIZE, dtype=torch.float32)
    shape = (count, 3, 1, 1)  # up to three lesions an image
    row, column, angle = uniform(8, SIZE - 8, *shape), uniform(8, SIZE - 8, *shape), uniform(0, torch.pi, *shape)
    down, right = axis.view(-1, 1) - row, axis - column
    along = (down * angle.cos() + right * angle.sin()) / uniform(3, 7, *shape)
    across = (right * angle.cos() - down * angle.sin()) / uniform(2, 4, *shape)
    there = torch.arange(3).view(1, 3, 1, 1) < torch.randint(1, 4, (count, 1, 1, 1), generator=generator)
    inside = (along.square() + across.square() < 1) & there
    contrast = (inside * uniform(0.8, 1.6, *shape)).amax(1, keepdim=True)
    return 0.6 * texture + 0.5 * noise + contrast, inside.any(1).long()


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """`[B, 1, H, W]` to logits `[B, 2, H, W]`: the classic shape, three levels deep and thin."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = convolutions(1, width)
        self.down2 = convolutions(width, 2 * width)
        self.bottom = convolutions(2 * width, 4 * width)
        self.widen2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up2 = convolutions(4 * width, 2 * width)
        self.widen1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up1 = convolutions(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.down1(image)
        middle = self.down2(F.max_pool2d(fine, 2))
        coarse = self.bottom(F.max_pool2d(middle, 2))
        middle = self.up2(torch.cat([middle, self.widen2(coarse)], 1))
        fine = self.up1(torch.cat([fine, self.widen1(middle)], 1))
        logits: Tensor = self.head(fine)
        return logits


def train(loss: nn.Module, images: Tensor, labels: Tensor, seed: int) -> UNet:
    torch.manual_seed(seed)  # the same first weights and the same order of the images, whatever the loss
    network = UNet()
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss(network(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        schedule.step()
    return network


@torch.no_grad()
def foreground_dice(network: UNet, images: Tensor, labels: Tensor) -> float:
    """The Dice coefficient of predicted and true lesion pixels in each image, averaged over the images."""
    network.eval()
    found, true = network(images).argmax(1).bool(), labels.bool()
    both = (found & true).sum((1, 2))
    return float((2 * both / (found.sum((1, 2)) + true.sum((1, 2)))).mean())


def verdict(first: list[float], second: list[float]) -> str:
    """What the seeds, compared in pairs, can say."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    middle = mean(differences)
    half = T_95 * stdev(differences) / len(differences) ** 0.5
    low, high = middle - half, middle + half
    told = "{1} minus {0}, seed by seed: ".format(*LOSSES) + f"{middle:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}."
    if low <= 0 <= high:
        return f"{told}\nThe interval holds 0: three seeds cannot tell the two losses apart here."
    return f"{told}\nThe interval does not hold 0: these seeds tell the two apart, on these generated images only."


def main() -> None:
    torch.set_num_threads(1)  # layers this small gain little from more, and a busy machine would cost them much
    scores: dict[str, list[float]] = {name: [] for name in LOSSES}
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        training, held_out = lesions(TRAINING, generator), lesions(HELD_OUT, generator)
        for name, loss in LOSSES.items():
            start = time.perf_counter()
            score = foreground_dice(train(loss, *training, seed), *held_out)
            scores[name].append(score)
            print(
                f"seed {seed}  {name:<20} held-out Dice {score:.3f}  ({time.perf_counter() - start:.0f} s)", flush=True
            )
    print(f"\nForeground Dice on {HELD_OUT} held-out images, {len(SEEDS)} seeds\n{'loss':<20}   mean     sd")
    for name, values in scores.items():
        print(f"{name:<20}  {mean(values):.3f}  {stdev(values):.3f}")
    print(f"\n{verdict(*scores.values())}")


if __name__ == "__main__":
    main()
