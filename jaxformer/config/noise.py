"""The config section `data.noise`: how training pairs are changed at random."""

import math
from dataclasses import dataclass

from jaxformer.config.settings import Section, setting
from jaxformer.system.errors import InputError

_SHARE = {"least": 0, "most": 1}


@dataclass(frozen=True, kw_only=True)
class NoiseConfig(Section, name="data.noise"):
    """Shares of the training pairs that are changed: `jaxformer.text.noise`."""

    copy: float = setting(
        "Pairs that get an emoji, a number, a URL, an e-mail address, a placeholder of "
        "`user_defined_symbols` or an unknown word, the same one on both sides.",
        **_SHARE,
    )
    upper_case: float = setting("Pairs in capitals.", **_SHARE)
    title_case: float = setting("Pairs with a capital in each word.", **_SHARE)
    no_stop: float = setting("Pairs without their final full stops.", **_SHARE)
    typo: float = setting("Pairs with a typo in the source.", **_SHARE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (total := math.fsum(vars(self).values())) > 1:
            raise InputError(
                f"the shares of data.noise add up to {total:g}; lower them to 1 in all"
            )


NO_NOISE = dict.fromkeys(NoiseConfig.keys({}), 0.0)
