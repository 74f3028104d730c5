# What every rule needs to know of the run; the package works it out.
from steelrail.chain import open_chain

CHAIN = open_chain(
    config.get("run"),
    is_head=workflow.is_main_process,
    is_dry=workflow.dryrun or workflow.touch,
)
RESULTS = CHAIN.folder
RUN = CHAIN.run


wildcard_constraints:
    part=r"\d+",
