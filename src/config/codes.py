"""All error codes of reading a deployment: their meaning and what to do. `engine explain CODE` prints these pages.

C1xx: the configuration; M3xx: the model's files. Rules across options (Rxxx) are in resolve/rule_tables/.
"""

from __future__ import annotations

from dataclasses import dataclass

from .exit_codes import (
    EXIT_INVALID_CONFIGURATION,
    EXIT_MODEL_FILES,
    EXIT_WRONG_COMMAND_LINE,
)


@dataclass(frozen=True, slots=True)
class Code:
    code: str
    title: str
    meaning: str
    fix: str
    exit_code: int = EXIT_INVALID_CONFIGURATION


_CODES = (
    Code(
        "C101",
        "a file cannot be read",
        "The file does not exist, is a directory, or this user may not read it.",
        "Check the name; names in `extends` are relative to the file that contains them.",
    ),
    Code(
        "C102",
        "invalid YAML",
        "The text is not well-formed YAML. Common causes are a tab in the indentation and a missing quote.",
        "Correct the line shown; indent with spaces.",
    ),
    Code(
        "C103",
        "no such key",
        "The file contains a key that is not an option. Keys are never ignored: with a misspelt one the default would "
        "silently apply. Keys at the top level that start with `x-` are free for your own use.",
        "Use one of the suggested keys, or search with `engine explain WORD`.",
    ),
    Code(
        "C104",
        "wrong type",
        "The value has another type than the option: a text instead of a number, a list instead of a single value, "
        "`yes` instead of true or false.",
        "Write what the message allows; `engine explain OPTION` shows examples.",
    ),
    Code(
        "C105",
        "a required key is missing",
        "`model.model` has no default: a deployment must name the model that it serves. Some mappings also need keys.",
        "Write it in the file; the model can also be given with `--model`.",
    ),
    Code(
        "C106",
        "duplicate key",
        "A mapping contains the same key twice. Many YAML readers silently keep the last value; here it is an error.",
        "Remove one of the two.",
    ),
    Code(
        "C107",
        "value not allowed",
        "The value has the right type and is outside the option's range or set of choices.",
        "Write what the message allows.",
    ),
    Code("C108", "not UTF-8", "The file contains bytes that are not valid UTF-8.", "Save it as UTF-8."),
    Code(
        "C109",
        "too large",
        "A deployment file may have 4 MiB, 64 levels and 100,000 values, aliases counted each time they are used; a "
        "deployment may have 100 files. A larger one is a mistake or an attack.",
        "Check that this is the right file.",
    ),
    Code(
        "C110",
        "YAML tag not allowed",
        "Tags such as `!!python/object` make other programs run code. Only !!str, !!int, !!float, !!bool, !!null, "
        "!!map and !!seq are allowed.",
        "Remove the tag.",
    ),
    Code(
        "C111",
        "variable not set",
        "A `${VAR}` names an environment variable that is not set, or a `${VAR:?message}` one that is unset or empty.",
        "Set the variable, or write `${VAR:-default}`.",
    ),
    Code(
        "C112",
        "invalid interpolation",
        "The forms are ${VAR}, ${VAR:-default} and ${VAR:?message}; $$ is a dollar sign.",
        "Use one of these forms.",
    ),
    Code(
        "C113",
        "secret cannot be used",
        "A secret refers to an environment variable that is not set or to a file that cannot be read, or it cannot be "
        "sent in an HTTP header: it is blank, or contains a line break or characters other than printable ASCII, or a "
        "blank at an end. A secret is a text, `{env: NAME}` or `{file: path}`.",
        "Set the variable or create the file, and write the secret in printable ASCII. File names are relative to the "
        "file that contains them.",
    ),
    Code(
        "C114",
        "files extend each other",
        "`extends` leads back to a file that is already being read.",
        "Move the shared part into a third file.",
    ),
    Code("C115", "no such preset", "The preset is not part of this build.", "`engine explain presets` lists them."),
    Code(
        "C116",
        "no such variable",
        "An environment variable starts with ENGINE__ and is not the variable of an option. The form is "
        "ENGINE__SECTION__OPTION.",
        "Correct or unset it. `engine explain OPTION` shows the variable of an option.",
    ),
    Code(
        "C117",
        "a variable looks like an option",
        "An environment variable is similar to that of an option, and is not read: the parts of a name are joined by "
        "two "
        "underscores.",
        "Rename it, or ignore this warning if it belongs to another program.",
    ),
    Code(
        "C118",
        "not available in this build",
        "The option or value is known, but this build does not support it. It is refused, never ignored.",
        "Use what the message suggests.",
    ),
    Code(
        "C119",
        "the top level must be a mapping",
        "A deployment file is one YAML document whose top level is a mapping of sections.",
        "Start with `model:`; write one document per file.",
    ),
    Code(
        "C120",
        "no such option",
        "The command line contains a flag that neither this command nor any option has.",
        "Use one of the suggested flags, or search with `engine explain WORD`.",
        EXIT_WRONG_COMMAND_LINE,
    ),
    Code(
        "C121",
        "invalid use of a flag",
        "A flag has no value, or a value that it does not accept, or invalid JSON.",
        "`engine explain --FLAG` shows an example.",
        EXIT_WRONG_COMMAND_LINE,
    ),
    Code(
        "C122",
        "flag given twice",
        "The same option is set twice on one command line; the last value applies.",
        "Remove one of them.",
    ),
    Code(
        "C123",
        "deprecated",
        "The option is the older name of another option, or has no effect any more. It is still accepted and is "
        "replaced "
        "by current options.",
        "Use the option that the message shows; `engine migrate FILE --write` changes the file.",
    ),
    Code(
        "C124",
        "old and new name have different values",
        "A deprecated option and its replacement are both set, to different values.",
        "Remove the deprecated one.",
    ),
    Code(
        "C126",
        "more findings",
        "Only the first hundred findings are shown. With more of them the file is often not a deployment at all.",
        "Check that this is the right file; correct the findings and run the command again.",
    ),
    Code(
        "C127",
        "an option of the engine without an engine",
        "With `server.engine: none` nothing is computed, so that options of the sections for weights, cache, "
        "scheduler, parallelism and devices have no effect. They are left out.",
        "Remove them, or keep them in a file for the servers that generate.",
    ),
    Code(
        "C130",
        "a secret in plain text in a file that is rendered",
        "`engine render` copies the manifest into its output, which more people can read than a secret allows. So the "
        "manifest must refer to a secret instead of containing it; the supervisor provides its value.",
        "Write `{env: NAME}`, `${NAME}` or `{file: path}`; a default after `:-` is plain text too.",
    ),
    Code(
        "C131",
        "a file cannot be bundled",
        "`engine render` bundles the files that a deployment refers to, each at its path relative to the manifest. "
        "Folders of weights, large files, files that are not text and missing files cannot be bundled.",
        "Follow the message; usually: write an absolute path that exists where the deployment runs.",
    ),
    Code(
        "C132",
        "not possible on Ray",
        "With `stoker.ray.build_app` Ray Serve listens, distributes requests and starts replicas. An option that gives "
        "one of these tasks to the server itself would have no effect.",
        "Remove the option; docs/guide/ray-serve.md names what takes its place.",
    ),
    Code(
        "C133",
        "not possible in this form",
        "`engine render` writes the deployment for one kind of supervisor. The deployment is valid, but it "
        "could not be run, or not be reached, in this form.",
        "Follow the message: change the option, or render another form.",
    ),
    Code(
        "C125",
        "nothing to import",
        "The text, script or file does not start a server that `engine import` supports, or cannot be read. Supported "
        "are "
        "vLLM, SGLang, TGI and llama.cpp's server, started directly, as a Python module or in a container, and "
        "Modelfiles of Ollama.",
        "Give the command line that starts the server, in single quotes or in a file; or give the engine with --from.",
        EXIT_WRONG_COMMAND_LINE,
    ),
    Code(
        "M301",
        "no such model",
        "The name is neither a directory with a config.json or params.json nor a model in the hub's cache on this "
        "machine.",
        "Check the name. `engine up` downloads hub ids; the other commands use no network.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M302",
        "a model file is missing",
        "A file that the model's index or configuration refers to does not exist, or a tensor of the model is in none.",
        "Download or copy the model again. `load.load_format: dummy` runs without weights.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M303",
        "a model file is damaged",
        "A file is truncated, or its header does not match its length: an interrupted download or copy.",
        "Download the file again.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M304",
        "model not supported",
        "This build runs text models of the families in docs/reference/models.md saved by one process, also with "
        "quantised weights of the methods in docs/guide/models-and-hardware.md, and other architectures through the "
        "transformers library, on a CPU: docs/reference/transformers-classes.md says of each whether and how. With "
        "`model.model_impl: transformers` it probes classes of other releases too. Code from a model's repository runs "
        "only if `model.trust_remote_code` allows it.",
        "Choose another checkpoint of the model, or another model; the message may name an option that helps.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M305",
        "unsafe weight format",
        "A torch file (.bin, .pt, .pth) has the format of releases before 1.6, a plain pickle that can run any code "
        "when "
        "it is opened; or it refers to objects other than tensors. Files are read as data, and no code in them runs.",
        "Convert the checkpoint to safetensors, or use one that has them.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M306",
        "invalid config.json",
        "A value in config.json, params.json, generation_config.json or the header of a GGUF file, or in "
        "model.hf_overrides, is missing or invalid.",
        "Correct the key in the message; model.hf_overrides can replace it.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M307",
        "no tokenizer",
        "The directory contains no tokenizer.json and no older vocabulary.",
        "Give a tokenizer with model.tokenizer, or serve token ids with model.skip_tokenizer_init.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M308",
        "download failed",
        "The hub does not have the model, does not let this user read it, cannot be reached, or sends files that "
        "differ from their hashes; or the disk is full.",
        "Check the name, model.hf_token, the network and the disk, or copy the model to this machine and give its "
        "directory.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M309",
        "a model file cannot be read",
        "The name exists, but is a pipe, a device, a socket, a directory or a circle of links, or this user may not "
        "read it.",
        "Put the model's file in its place, or correct its permissions.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M310",
        "adapter not supported",
        "An adapter (LoRA) has a key or a tensor that changes what it computes in a way that this build does not: "
        "norms that it replaces, tokens from which on it acts (activated LoRA), an initialisation that changed the "
        "model's own weights. An adapter is applied whole or refused, never in part.",
        "Follow the message. PEFT's `merge_and_unload` makes a model of any adapter, which can be served by itself.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M311",
        "adapter does not fit the model",
        "A tensor of an adapter (LoRA) belongs to a layer that the model does not have, has another shape than the "
        "layer needs, lacks its counterpart, or has a rank above `lora.max_lora_rank`.",
        "Check that the adapter was trained for this model, and copy it again if a tensor is missing; a rank needs the "
        "number that the message says.",
        EXIT_MODEL_FILES,
    ),
)
CODES = {code.code: code for code in _CODES}
