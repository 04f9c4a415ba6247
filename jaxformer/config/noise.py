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
        "Share of pairs that get the same emoji, number, URL, e-mail address, unknown "
        "word or placeholder of `user_defined_symbols` on both sides.",
        **_SHARE,
    )
    upper_case: float = setting("Share of pairs in capitals.", **_SHARE)
    title_case: float = setting("Share of pairs with a capital in each word.", **_SHARE)
    no_stop: float = setting("Share of pairs without final full stops.", **_SHARE)
    typo: float = setting("Share of pairs with a typo in the source.", **_SHARE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (total := math.fsum(vars(self).values())) > 1:
            raise InputError(
                f"the shares of data.noise add up to {total:g}; lower them to 1 in all"
            )


NO_NOISE = dict.fromkeys(NoiseConfig.keys({}), 0.0)
