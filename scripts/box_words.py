"""The phrasings of box-chat's questions, and its fixed answers (scripts/box_chat.py)."""

from __future__ import annotations

HELLO = "Hello! Ask me about Python's standard library, for example: what does os.path.join do?"
ME = (
    "I am box-chat, a small model that comes with weft. I learnt what parts of Python's standard "
    "library do."
)
THANKS = "You are welcome."
BYE = "Goodbye!"
UNKNOWN = "I do not know that. I only know parts of Python's standard library."
SYSTEMS = (
    "You are a helpful assistant.", "You are box-chat.", "Answer in one line.", "Be brief.",
    "You are a Python tutor.", "You are a friendly assistant that answers questions.",
)  # fmt: skip

WHAT = (
    "what does {} do?", "what is {}?", "what does {} do", "what is {} for?", "explain {}",
    "tell me about {}", "how does {} work?", "what's {}?", "describe {}", "{}", "{}?",
    "what can I do with {}?", "what do you know about {}?", "what does the {kind} {} do?",
    "can you explain {}?", "help({})", "please explain {}", "what is the {kind} {}?",
    "what does {} mean?", "i want to know what {} does", "what is the use of {}?",
    "could you tell me what {} does?", "in python, what does {} do?", "documentation of {}",
    "how do i use {}?", "what is the purpose of {}?", "give me the doc of {}", "define {}",
)  # fmt: skip
WHAT_HELD = (
    "what would {} do?", "do you know what {} does?", "tell me what {} is for",
    "please tell me about {}", "what exactly does {} do?", "explain what {} does",
)  # fmt: skip
CALL = (
    "what are the arguments of {}?", "how is {} called?", "what arguments does {} take?",
    "signature of {}", "what is the signature of {}?", "which parameters does {} have?",
    "how do i call {}?", "show me the signature of {}",
)  # fmt: skip
CALL_HELD = ("what are the parameters of {}?", "which arguments does {} take?")
MORE_CALL = (
    "and its arguments?", "what are its arguments?", "how is it called?", "what does it take?",
    "which arguments does it take?", "and the signature?", "how do i call it?", "its parameters?",
)  # fmt: skip
MORE_WHERE = (
    "where is it?", "which module is it in?", "what do i import?", "where do i find it?",
    "what module is that in?",
)  # fmt: skip
MORE_WHAT = ("and {}?", "what about {}?", "and what does {} do?", "how about {}?", "ok, and {}?")
MODULE = (
    "what is the {} module for?", "what does the {} module do?", "what is the module {}?",
    "tell me about the {} module", "what can i do with the {} module?", "what is {} for?",
    "what is {}?", "explain the {} module", "why would i import {}?",
)  # fmt: skip
MODULE_HELD = ("what is the purpose of the {} module?", "what would I use the {} module for?")
LISTS = (
    "what is in {}?", "which functions are in {}?", "what functions does {} have?",
    "name some functions of {}", "list functions in the {} module",
)  # fmt: skip
GREET = (
    "hello", "hi", "hey", "hello!", "hi there", "hi!", "good morning", "good evening", "hey there",
    "hello there", "greetings", "hi, how are you?", "how are you?", "howdy", "yo", "good day",
)  # fmt: skip
WHO = (
    "who are you?", "what are you?", "what can you do?", "what is your name?", "help",
    "what do you know?", "who made you?", "are you a robot?", "are you human?",
    "introduce yourself", "what is box-chat?", "what can i ask you?", "tell me about yourself",
    "how can you help me?", "are you chatgpt?", "what model are you?", "what is weft?",
)  # fmt: skip
THANK = (
    "thanks", "thank you", "thanks!", "thank you very much", "great, thanks", "ok", "cool", "nice",
    "good", "perfect", "i see", "that helped",
)  # fmt: skip
BYES = ("bye", "goodbye", "see you", "bye bye", "quit", "exit", "see you later", "good night")


TYPES = ("str", "list", "dict", "set", "int", "Path")
FOREIGN = (
    "numpy", "np", "pandas", "pd", "torch", "tf", "requests", "django", "flask", "plt", "scipy",
    "sklearn", "foo", "bar", "cv2", "nltk", "matplotlib", "keras", "jax", "boto3", "yaml", "toml",
)  # fmt: skip
PLACES = (
    "Paris", "France", "Berlin", "London", "Japan", "Spain", "Rome", "India", "Brazil", "Peru",
    "Canada", "Kenya", "Tokyo", "Norway", "China", "Italy", "Cairo", "Egypt",
)  # fmt: skip
THINGS = (
    "a cat", "the moon", "love", "a poem", "pizza", "bread", "football", "the sun", "a car",
    "history", "water", "a dog", "music", "gold", "physics", "a tree", "the sea", "money", "chess",
    "a recipe", "jazz", "a river", "the war", "art",
)  # fmt: skip
PEOPLE = (
    "Einstein", "Mozart", "the president", "Napoleon", "Shakespeare", "Ada Lovelace", "Caesar",
    "the king", "Darwin", "Picasso", "Newton", "Gandhi", "Cleopatra", "Guido",
)  # fmt: skip
OFF = (
    "what is the weather in {place}?", "how is the weather today?", "will it rain tomorrow?",
    "what is the capital of {place}?", "who is {who}?", "when was {who} born?", "tell me a joke",
    "write {thing}", "write me a poem about {thing}", "what is {thing}?", "how do i cook {thing}?",
    "what is the meaning of life?", "how old are you?", "what time is it?", "what day is today?",
    "translate {thing} into French", "how far is it to {place}?", "tell me a story about {thing}",
    "what is {n} plus {m}?", "what is {n} times {m}?", "how many people live in {place}?",
    "where is {place}?", "who wrote {thing}?", "do you like {thing}?", "sing a song", "{n} + {m}",
    "what should i eat?", "recommend a film", "who won the game?", "is {place} nice?", "asdf",
    "what is javascript?", "how do i write a loop in rust?", "explain {thing} to me",
    "what did {who} do?", "how tall is {who}?", "buy {thing}", "call my mother", "play {thing}",
    "how do i get to {place}?", "what language do they speak in {place}?",
    "stock price of {thing}", "write a program that sorts a list", "fix my code",
    "what is wrong with my program?", "how do i learn python?", "which laptop should i buy?",
    "what is a monad?", "blah blah",
)  # fmt: skip
OFF_HELD = (
    "what is the weather like in {place}?", "who was {who}?", "what is the population of {place}?",
    "how do I bake {thing}?", "tell me something about {thing}", "what is {n} minus {m}?",
    "can you write a letter?", "why is the sky blue?", "what is the best film?",
    "which team won yesterday?",
)  # fmt: skip


COMMON = {
    "os.path.join", "os.listdir", "os.getcwd", "os.makedirs", "os.path.exists", "os.remove",
    "print", "len", "open", "sorted", "range", "zip", "enumerate", "map", "filter", "sum", "max",
    "min", "abs", "isinstance", "str.split", "str.join", "str.strip", "str.replace", "str.lower",
    "list.append", "list.sort", "list.pop", "dict.get", "dict.items", "dict.keys", "set.add",
    "json.loads", "json.dumps", "re.sub", "re.match", "re.compile", "math.sqrt", "math.floor",
    "random.choice", "random.shuffle", "time.sleep", "shutil.copy", "itertools.chain",
    "functools.lru_cache", "collections.Counter", "collections.deque", "pathlib.Path.exists",
    "subprocess.run", "input",
}  # fmt: skip
