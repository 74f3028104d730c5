# What every rule needs to know of the run; the package works it out.
from steelrail.chain import open_chain

CHAIN = open_chain(config.get("run"), is_head=workflow.is_main_process)
RESULTS = CHAIN.folder
RUN = CHAIN.run


onstart:
    CHAIN.start()


wildcard_constraints:
    part=r"\d+",
