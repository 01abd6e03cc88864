"""What somebody may have meant by a name that is not known: a near one, or what the field calls it elsewhere."""

from collections.abc import Iterable
from difflib import get_close_matches

SYNONYMS = {
    "rate": "lr learningrate initiallr initlr baselr",
    "batch": "batchsize bs b trainbatchsize",
    "epochs": "maxepochs numepochs nepochs epochsnum",
    "decay": "weightdecay wd l2",
    "power": "polypower polyexp",
    "clip": "gradclip clipgrad gradientclip gradientclipval maxnorm maxgradnorm",
    "size": "imagesize imgsize imgsz inputsize resolution cropsize",
    "patch": "patchsize roi roisize",
    "seed": "randomseed randomstate",
    "folds": "kfold kfolds nfolds numfolds nsplits cv",
    "model": "network net arch architecture backbone",
    "loss": "criterion lossfunction lossfn lossname",
    "precision": "amp fp16 bf16 halfprecision mixedprecision autocast dtype",
    "device": "gpu gpus gpuid cuda accelerator",
    "data": "dataset datadir datapath dataroot input inputdir root imagesdir",
    "out": "output outputdir outdir savedir resultsdir logdir o",
    "cache": "cachedir",
    "resume": "continue checkpoint ckpt",
    "track": "logger tensorboard wandb",
    "pretrained": "weights pretrainedweights",
    "jobs": "workers numworkers njobs nproc processes j",
    "flips": "tta mirror augment",
    "list": "ls recipes",
    "train": "fit training",
    "predict": "infer inference test segment",
    "study": "compare experiment sweep benchmark",
    "report": "summary results",
    "curves": "plot draw",
}
MEANT = {word: name for name, words in SYNONYMS.items() for word in words.split()}


def meant(given: str, known: Iterable[str]) -> str:
    """That of the known names which was most likely meant, or nothing.

    >>> meant("studdy", ["train", "study"]), meant("learning-rate", ["rate", "decay"]), meant("qwerty", ["rate"])
    ('study', 'rate', '')
    """
    names = list(known)
    word = MEANT.get("".join(filter(str.isalnum, given.lower())), "")
    return word if word in names else next(iter(get_close_matches(given, names, 1)), "")
