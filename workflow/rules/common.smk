# What every rule needs to know of the run; the package works it out.
from steelrail.chain import one_message, open_chain

with one_message():
    CHAIN = open_chain(config.get("run"), is_head=workflow.is_main_process)
RESULTS = CHAIN.folder
RUN = CHAIN.run


onstart:
    with one_message():
        CHAIN.start()


onerror:
    CHAIN.fail()


wildcard_constraints:
    part=r"\d+",
