"""Every error code of reading a deployment: what it means and what to do. `engine explain CODE` prints these pages.

C1xx what was written, M3xx the model's files. Rules across options (Rxxx) are in resolve/rule_tables/.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import (
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
        "Check the name; names in `extends` are relative to the file that wrote them.",
    ),
    Code(
        "C102",
        "no YAML",
        "The text is not well-formed YAML. A tab in the indentation and a missing quote are the usual causes.",
        "Correct the place shown; indent with spaces.",
    ),
    Code(
        "C103",
        "no such key",
        "The file holds a key that no option has. Keys are never ignored: a misspelt one would leave the default in "
        "force without a word. Keys that start with `x-` at the top are free for your own use.",
        "Take one of the keys offered, or look for it with `engine explain WORD`.",
    ),
    Code(
        "C104",
        "wrong type",
        "The value cannot be read as what the option takes: a text where a number belongs, a list where one value "
        "belongs, `yes` where true or false belongs.",
        "Write what the message allows; `engine explain OPTION` shows examples.",
    ),
    Code(
        "C105",
        "a required key is missing",
        "Only `model.model` has no default: a deployment must say what it serves.",
        "Write it in the file, or give `--model`.",
    ),
    Code(
        "C106",
        "duplicate key",
        "A mapping holds the same key twice. YAML readers commonly keep the last in silence; here it is an error.",
        "Remove one of the two.",
    ),
    Code(
        "C107",
        "value not allowed",
        "The value has the right type and lies outside the option's range or set of choices.",
        "Write what the message allows.",
    ),
    Code("C108", "not UTF-8", "The file holds bytes that are no UTF-8 text.", "Save it as UTF-8."),
    Code(
        "C109",
        "too large",
        "A deployment file may have 4 MiB, 64 levels and 100,000 values, aliases counted as often as they are used; a "
        "deployment, 100 files. Nobody writes more by hand; what has more is an accident or an attack.",
        "Check that this is the right file.",
    ),
    Code(
        "C110",
        "YAML tag not allowed",
        "Tags such as `!!python/object` make other programs run code. Only !!str, !!int, !!float, !!bool, !!null, "
        "!!map and !!seq are known here.",
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
        "interpolation cannot be read",
        "Known forms are ${VAR}, ${VAR:-default} and ${VAR:?message}; $$ stands for one dollar sign.",
        "Use one of these forms.",
    ),
    Code(
        "C113",
        "secret cannot be read",
        "A secret names an environment variable that is not set or a file that cannot be read. A secret is a text, "
        "`{env: NAME}` or `{file: path}`.",
        "Set the variable or create the file. File names are relative to the file that wrote them.",
    ),
    Code(
        "C114",
        "files extend each other",
        "Following `extends` leads back to a file that is being read.",
        "Move what both need into a third file.",
    ),
    Code("C115", "no such preset", "The preset is not part of this build.", "`engine explain presets` lists them."),
    Code(
        "C116",
        "no such variable",
        "An environment variable starts with ENGINE__ and names no option. The form is ENGINE__SECTION__OPTION.",
        "Correct or unset it. `engine explain OPTION` prints each option's variable.",
    ),
    Code(
        "C117",
        "a variable looks like an option",
        "An environment variable resembles the name of an option, and is not read: the parts of a name are joined "
        "by two underscores.",
        "Rename it, or ignore this warning if it belongs to another program.",
    ),
    Code(
        "C118",
        "not available in this build",
        "The value is known and this build cannot do it. It is refused, never ignored.",
        "Take what the message offers.",
    ),
    Code(
        "C119",
        "not one mapping",
        "A deployment file is one YAML document that is a mapping of sections.",
        "Start with `model:`; keep one document per file.",
    ),
    Code(
        "C120",
        "no such option",
        "The command line holds a flag that neither this command nor any option has.",
        "Take one of the flags offered, or look for it with `engine explain WORD`.",
        EXIT_WRONG_COMMAND_LINE,
    ),
    Code(
        "C121",
        "flag used wrongly",
        "A flag lacks its value, has one it cannot take, or holds JSON that cannot be read.",
        "`engine explain --FLAG` shows how it is written.",
        EXIT_WRONG_COMMAND_LINE,
    ),
    Code(
        "C122",
        "flag given twice",
        "The same option is set twice on one command line; the last one counts.",
        "Remove one of them.",
    ),
    Code(
        "C123",
        "deprecated",
        "The option is one of an older release, of this program or of one that it takes launch scripts from. It still "
        "works: what it means today is put in its place.",
        "Write what the message names; `engine migrate FILE --write` does it for you.",
    ),
    Code(
        "C124",
        "an old name contradicts the new one",
        "A deprecated option and the one that took its place are both set, to different values.",
        "Remove the deprecated one.",
    ),
    Code(
        "C126",
        "more findings",
        "So much is wrong that only the first hundred findings are told. A file that was never meant as a deployment "
        "often looks like that.",
        "Check that this is the right file; correct what is told and run again.",
    ),
    Code(
        "C130",
        "a secret stands in plain text in a file that is to be rendered",
        "`engine render` copies the manifest into what it writes, and that is read by more people than a secret may "
        "be. So a secret has to be named, not written: the supervisor then brings it from where it keeps secrets.",
        "Write `{env: NAME}`, `${NAME}` or `{file: path}`; a default behind `:-` is a plain text too.",
    ),
    Code(
        "C131",
        "something cannot be carried along",
        "`engine render` takes the files that a deployment names along, each at its place beside the manifest. Folders "
        "full of weights, large files, files that are no text and files that are not here cannot be taken.",
        "Do as the message says: mostly, write an absolute path that exists where the deployment runs.",
    ),
    Code(
        "C125",
        "nothing to import",
        "The text, script or file starts no server that `engine import` knows, or it cannot be read: vLLM, SGLang and "
        "llama.cpp's server are known, started directly, as a Python module or in a container.",
        "Give the line as it starts the server, in single quotes or in a file; or name the engine with --from.",
        EXIT_WRONG_COMMAND_LINE,
    ),
    Code(
        "M301",
        "no such model",
        "The name is no directory with a config.json and no model in the hub's cache on this machine.",
        "Check the name. `engine up` downloads hub ids; the other commands use no network.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M302",
        "a model file is missing",
        "The model's directory lacks a file that its index or its config names, or it cannot be read.",
        "Download or copy the model again. `load.load_format: dummy` runs without weights.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M303",
        "a model file is damaged",
        "A file is cut short, or its header does not agree with its length: an interrupted download or copy.",
        "Fetch the file again.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M304",
        "model not supported",
        "This build runs Llama, Mistral, Qwen2 and Qwen3 text models with unquantised weights of one process, and no "
        "code that a model's repository brings.",
        "Choose another checkpoint of the model, or another model.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M305",
        "unsafe weight format",
        "A file of torch (.bin, .pt, .pth) is in the format of before 1.6, a bare pickle, which can run any code when "
        "it is opened; or it asks for something that a table of tensors has no need of. Such files are read as data, "
        "and nothing in them is run.",
        "Convert the checkpoint to safetensors, or take one that has them.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M306",
        "config.json makes no sense",
        "A value in config.json or generation_config.json, or in model.hf_overrides, is missing or impossible.",
        "Correct the key that the message names; model.hf_overrides can replace it.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M307",
        "no tokenizer",
        "The directory holds no tokenizer.json.",
        "Name a tokenizer with model.tokenizer, or serve token ids with model.skip_tokenizer_init.",
        EXIT_MODEL_FILES,
    ),
    Code(
        "M308",
        "download failed",
        "The hub does not have the model, does not let this user read it, or cannot be reached.",
        "Check the name, model.hf_token and the network, or copy the model here and name its directory.",
        EXIT_MODEL_FILES,
    ),
)
CODES = {code.code: code for code in _CODES}
