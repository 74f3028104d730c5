# Steelrail: corpus -> shards -> fabric -> train -> cost.
#   snakemake --profile slurm                        the whole chain of config/demo.yaml
#   snakemake --profile slurm --config run=NAME      the chain of config/NAME.yaml
#   snakemake --profile slurm train                  up to one stage
from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/common.smk"
include: "workflow/rules/corpus.smk"
include: "workflow/rules/shards.smk"
include: "workflow/rules/fabric.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/cost.smk"


rule all:
    default_target: True
    input:
        # Named, although the bill needs it: Snakemake makes no file anew that is missing behind one that is there, and an
        # earlier bill would hide a run that was stopped.
        rules.train.output.record,
        rules.cost.output.summary,
    localrule: True
