"""Write the prompts for a head's training text, as jsonl for `twinspark distill --prompts`.

Maths (about 40%), Python and open requests (30% each), made from templates and word lists: the same lines every time.

    python benchmarks/head_prompts.py prompts.jsonl     (without a path: to standard output)

A template is one line (indented lines go on with it): `a=2..9 b=10..90/5 | text`. It draws a from 2 to 9
and b from 10, 15, ... 90. In the text `<a*b>` is the value of an expression, `<item>` a word of the list `item`, the
same one wherever it stands, and `~` a new line.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from head_prompt_topics import CLASSES, FUNCTIONS, PROGRAMS

MATHS_COUNT, OPEN_COUNT = 6000, 4000
STUBS, REQUESTS, FIXES, EXPLANATIONS, TESTS, OTHER_CODE = 900, 900, 60, 300, 250, 1000

WORD_LISTS = """
name: Amara; Bruno; Chloe; Diego; Elif; Farah; Goran; Hana; Ivan; Jasmine; Kofi; Lena; Mateo; Nadia; Omar; Priya;
  Quinn; Rosa; Samir; Tara; Uma; Viktor; Wen; Yusuf; Zoe
other: Anton; Bella; Carlos; Dina; Emil; Greta; Hugo; Ines; Jonas; Kavya; Luis; Mei; Noor; Otto; Pia
item: stickers; marbles; pencils; seashells; postcards; buttons; badges; stamps; toy cars; comic books; beads
treat: muffins; pancakes; samosas; cookies; dumplings; cupcakes; bread rolls; waffles; pretzels; tarts
fruit: apples; oranges; pears; mangoes; plums; peaches; lemons; kiwis; bananas; figs
pet: rabbits; hens; goats; ducks; sheep; horses; cats; geese
shop: bakery; bookshop; bike shop; flower shop; toy shop; pet shop; farm stand; hardware store; tea house
vehicle: train; bus; cyclist; truck; boat; motorbike; delivery van; tram
place: school; library; museum; gym; theatre; hotel; hospital; sports club; community centre
job: plumber; gardener; teacher; nurse; software engineer; chef; photographer; baker; librarian; pilot
topic: recycling; night buses; learning a language; sleep; home gardening; remote work; public parks; tea; city
  cycling; bird watching; saving money; board games; running; volcanoes; electric cars; cooking for one; museums;
  bees; chess; music lessons; camping; school uniforms; robots; libraries; tidal power
science: rainbows form; vaccines work; planes stay in the air; tides happen; bread rises; batteries store energy;
  leaves change colour; the heart pumps blood; magnets attract iron; soap cleans; GPS finds a position; stars are
  born; ice floats; we hear sound; plants make food; earthquakes start; the moon has phases
mood: funny; calm; mysterious; hopeful; sad but warm; dramatic; playful
hero: a lighthouse keeper; a lost robot; a shy dragon; two rival bakers; a retired detective; a young astronaut; a
  talking cat; a clockmaker; a mountain guide; a ghost who fears the dark
versus: trains and planes for short trips; renting and buying a home; tea and coffee; solar and wind power; cats and
  dogs as pets; paper books and e-readers; SQL and NoSQL databases; running and swimming; studying alone and in a
  group; a laptop and a desktop computer; living in a city and in the country
goal: wake up earlier; learn to swim as an adult; prepare for a job interview; eat more vegetables; read more; give a
  first public talk; save for a holiday; stop putting things off; make friends in a new city; plan a move
text: The Miller Bridge closes on 3 May for ten days. Buses 14 and 22 will use Park Street instead, and cyclists may
  take the ferry for free; Bees visit flowers for nectar. As they move, pollen sticks to their hair and reaches other
  flowers, which can then form seeds. A third of our crops depends on this; Northside Bakery opened in 1987 with two
  ovens. Today its owner, Marta Silva, employs 24 people and sells 900 loaves a day, most of them to schools; The new
  phone weighs 170 grams and costs 399 euros. Reviewers liked its battery, which lasts two days, but found the camera
  poor at night; Lake Orin has lost a fifth of its water since 2010. Farmers pump more in dry years, and fishers now
  ask for limits. The council will vote in June
review: The soup was cold but the waiter was kind; Best headphones I ever had, worth every cent; It arrived late and
  the box was torn; Does what it says, nothing more; I wanted to love this film, but it is far too long
record: books; employees; recipes; bank transactions; movies; students and grades; parcels; sensor readings; songs;
  tickets; contacts; orders; hotel rooms; workouts; log lines; chess games
subject: gardening; astronomy; football; cooking; history; travel
deco: measures run time; retries a failing call; caches results; logs arguments; checks argument types
pair: lists and tuples; `is` and `==`; shallow and deep copies; sets and dicts; threads and processes; `append` and
  `extend`; class and instance attributes; generators and lists; `*args` and `**kwargs`
feature: `enumerate`; `zip`; a list comprehension; `with`; `lambda`; `yield`; `try` with `finally`; slicing;
  `defaultdict`; `functools.reduce`; an f-string; `@property`; `any` and `all`; the walrus operator
algorithm: binary search; insertion sort; merge sort; quicksort; breadth-first search; depth-first search; Dijkstra's
  algorithm; the sieve of Eratosthenes; topological sorting; Euclid's algorithm; bubble sort; the 0/1 knapsack by
  dynamic programming; longest common subsequence; edit distance; heap sort
pattern: an ISO date; a phone number; a hex colour; a time such as 07:45; a postal code; a username; a price
error: KeyError: 'id'; IndexError: list index out of range; TypeError: 'NoneType' object is not iterable;
  ZeroDivisionError: division by zero; UnicodeDecodeError; RecursionError; ModuleNotFoundError; ValueError: invalid
  literal for int() with base 10: 'x'; AttributeError: 'list' object has no attribute 'split'
cls: Inventory; ShoppingCart; Library; Playlist; Garage; BankAccount; Scoreboard; Schedule; Wallet; Catalog
structure: a stack; a queue; a linked list; a binary search tree; a min-heap; a ring buffer; a trie; a matrix; an LRU
  cache; a graph with adjacency lists; a priority queue; a 2D vector; a fraction; a union-find
"""
MATHS = r"""
a=4..12 b=3..9 c=5..20 | <name> has <a*b> <item> and <other> has <c> more. How many <item> do they have together?
a=3..9 b=4..12 c=2..8 | A <shop> packs <a*b> <treat> into boxes of <a> and sells each box for $<c>. How much money does
  it make?
a=2..6 b=3..9 c=90..200/10 | <name> buys <a> notebooks at $<b> each and a bag for $<c//5>. How much is left of $<c>?
a=12..30/2 b=6..15 c=2..5 | <name> earns $<a> an hour and works <b> hours a week. A weekly bus pass costs $<c*5>. How
  much can <name> save in <c> weeks?
a=40..90/10 b=2..6 c=20..60/10 | A <vehicle> goes <a> km/h for <b> hours, then <c> km/h for half an hour. How far does
  it travel in total?
a=40..90/5 b=2..6 | A <vehicle> covers <a*b> km in <b> hours. At the same speed, how long does it take for <a*b*3> km?
a=6..14 b=2..9 c=2..9 | <name> is <a> years old and <other> is <2*a+b+c>. In how many years will <other> be <c> years
  older
  than twice the age of <name>?
a=5..15 b=3..8 | <name> is <b> years older than <other>. In <a> years the sum of their ages will be <4*a+b>. How old is
  <other> today?
a=2..9 b=10..50/10 c=20..90/10 | A coat costs $<a*20>. It is reduced by <b>%, and then a tax of 5% is added. What is the
  final price?
a=2..9 b=3..7 | Of <a*20> visitors to a <place>, <b*10>% walk and half of the others take a bus. How many is that?
a=3..9 b=2..5 | <name> picks <a*12> <fruit>, gives a third of them to <other> and uses a quarter of the rest for a cake.
  How many <fruit> are left?
a=2..6 b=3..8 c=4..9 | A farm has <a*b> <pet>. Each eats <c> kg of feed a day, and a sack holds <a*c> kg. How many sacks
  are needed for a week?
a=3..8 b=15..45/5 c=10..50/10 | <name> reads <b> pages on each of <a> days and has <c> pages left. What percentage of
  the book has been read? Round to one decimal.
a=2..8 b=10..55/5 c=5..40/5 | A film starts at <a>:<b> pm and lasts 2 hours and <c> minutes. When does it end?
a=5..11 b=5..55/5 c=3..6 | <name> leaves home at <a>:<b:02d>, walks <c> km at 4 km/h and waits 12 minutes for <other>.
  At what time can they start together?
a=2..6 b=3..9 | <a> workers paint a wall in <a*b> hours. How long do <a*b> workers need at the same pace?
a=2..9 b=2..9 | One pipe fills a tank in <a*2> hours, another in <a*2+b> hours. How long do both need together?
a=2..5 b=3..7 c=4..12 | A recipe for <a> people needs <b*50> g of flour and <c*25> ml of milk. How much of each is
  needed for <a*3> people?
a=3..9 b=2..7 c=100..400/50 | <name> saves $<a> in the first week and $<b> more each week than in the week before. After
  how many weeks has <name> saved at least $<c>?
a=10..40/5 b=4..9 c=2..6 | Tickets for a show at the <place> cost $<a> for adults and $<a//5*2> for children. A group of
  <b> adults and <c> children pays with $500. How much change do they get?
a=30..80/10 b=20..60/10 | <name> and <other> start <3*(a+b)> km apart and drive towards each other at <a> km/h and <b>
  km/h. After how many hours do they meet?
a=2..6 b=3..9 c=5..25/5 | A <shop> buys <a*10> <item> at $<b> each and sells all of them with a profit of <c>%. What is
  the total profit?
a=4..12 b=3..8 | The ratio of <fruit> to nuts in a mix is <b>:<a>. If the mix weighs <(a+b)*50> g, how heavy are the
  <fruit>?
a=5..9 b=2..4 c=60..75/5 | <name> scored <c>, <c+a> and <c-b> in three tests. Which score in the fourth test gives an
  average of <c+b>?
a=3..9 b=4..9 c=1..3 | A garden is <a+b> m long and <b> m wide. A fence costs $<c*4> per metre, and a gate of 1 m,
  costing $45, replaces part of it. What is the total cost?
a=10..30/2 b=5..20/5 | A tank holds <a*10> litres and loses <b> litres a day, while rain adds <b//5*2> litres a day.
  After how many days is it at most half full?
a=15..60/5 b=2..9 c=2..9 | A phone plan costs $<a> a month plus <b> cents per message. In March <name> paid $<a+b*c>.
  How many
  messages did <name> send?
a=2..7 b=2..6 | <name> has twice as many <item> as <other>, and <other> has <a> fewer than Sam. Together they have
  <4*b*a-3*a>. How many does Sam have?
a=6..30/6 b=3..8 c=2..5 | A worker puts together <a> toys an hour. After <b> hours <c> in every <a> are found broken.
  How many good toys are there?
a=100..900/100 b=2..8 c=2..5 | <name> puts $<a> in a bank at <b>% simple interest a year. How much is there after <c>
  years? And with compound interest?
a=2..9 b=3..9 c=3..9 | A snail climbs <a+b> m each day and slips back <a> m each night. On which day does it reach the
  top of a
  wall of <c*b+a> m?
a=2..9 b=11..19 | <name> changes $<a*50> into euros at <b*5> cents to the dollar and spends a fifth of them. How many
  euros are left, and how many dollars are they worth?
a=12..40 b=3..11 | There are <a> heads and <2*a+2*b> legs among hens and goats in a yard. How many goats are there?
a=2..9 b=1..20 c=3..40 | Solve for x: <a>x + <b> = <c>
a=2..9 b=1..9 c=1..9 | Solve the equation $<a>(x - <b>) = <c>x + <a+c>$ and check your answer.
a=1..9 b=1..9 | Find all solutions of $x^2 - <a+b>x + <a*b> = 0$.
a=2..6 b=1..9 c=1..9 | Solve $<a>x^2 + <b>x - <c> = 0$ with the quadratic formula.
a=1..9 b=1..9 c=2..5 | Solve the system: x + y = <a+b>, <c>x - y = <c*a-b>.
a=2..7 b=1..9 c=1..9 | Simplify $<a>(x + <b>) - <c>(2x - <a>)$.
a=2..9 b=2..9 | Expand and simplify $(<a>x - <b>)(x + <a+b>)$.
a=1..9 b=1..9 | Factor the expression x^2 + <a+b>x + <a*b>.
a=2..9 b=2..9 | Factor completely: $<a*a>x^2 - <b*b>$.
a=2..9 b=2..6 c=2..6 | Simplify $\frac{<a>x^{<b+c>}y^3}{<a*2>x^{<c>}y}$.
a=2..9 b=3..11 c=2..9 | Compute $\frac{<a>}{<b>} + \frac{<c>}{<b+2>}$ and give the answer as a reduced fraction.
a=2..9 b=2..9 c=10..60/5 | Solve the inequality $<a>x - <b> \le <c>$ and describe the solution on the number line.
a=2..9 b=1..9 c=2..5 | Let $f(x) = <a>x - <b>$ and $g(x) = x^2 + <c>$. Find $f(g(<c>))$ and $g(f(1))$.
a=2..9 b=1..9 | Find the equation of the line through (<a>, <b>) and (<a+2>, <b+6>).
a=2..5 b=2..8 | If $<a>^x = <a>^{<b>} \cdot <a>^3$, what is $x$?
a=2..6 b=2..9 | Simplify $\sqrt{<a*a*b>} + \sqrt{<b*4>}$.
a=2..9 b=5..20 c=2..9 | What is the <b>th term of the arithmetic sequence <c>, <c+a>, <c+2*a>, ...? Also find the sum of
  the first <b> terms.
a=2..5 b=2..6 | Find the sum of the geometric series <a> + <a*b> + <a*b*b> + ... with 6 terms.
a=3..12 b=4..12 | A right triangle has legs of <a> cm and <b> cm. Find its area and its hypotenuse.
a=3..15 b=2..9 | A rectangle has perimeter <2*(a+2*b)> and its length is <b> more than its width. What is its area?
a=2..12 b=3..15 | Find the volume and the surface area of a cylinder with radius <a> and height <b>. Leave $\pi$ in your
  answer.
a=30..80/5 b=10..60/5 | Two angles of a triangle measure $<a>^\circ$ and $<b>^\circ$. How large is the third, and what
  kind of triangle is it?
a=5..12 | What is the sum of the interior angles of a regular polygon with <a> sides, and how large is each one?
a=2..9 b=2..9 | A square of side <a+b> contains a circle touching all sides. What area of the square lies outside the
  circle?
a=12..90 b=14..96 | Find the greatest common divisor and the least common multiple of <a> and <b>.
a=100..999 | Write <a> as a product of primes.
a=2..9 b=20..99 c=3..13 | What is the remainder when $<a>^{<b>}$ is divided by <c>?
a=3..9 b=100..400/10 | How many integers from 1 to <b> are divisible by <a> but not by 2?
a=3..7 b=2..6 | A bag holds <a> red and <b> blue balls. Two are drawn without putting back. What is the probability that
  both are red?
a=7..11 | Two fair dice are rolled. What is the probability that the sum is at least <a>?
a=5..9 b=2..4 | In how many ways can a team of <b> be chosen from <a> people? What if one of them is the captain?
a=3..6 b=1..3 | A fair coin is tossed <a> times. What is the probability of exactly <b> heads?
a=4..7 | In how many ways can <a> people sit in a row if <name> and <other> want to sit next to each other?
a=2..9 b=1..9 c=2..6 | Find the derivative of $f(x) = <a>x^<c> - <b>x + <c>$ and its value at $x = 1$.
a=2..9 b=1..9 | Compute $\int_0^<a> (2x + <b>)\,dx$.
a=2..9 b=10..99 c=3..9 | Calculate <b> * <a> - (<b> + <c>) / 1 + <c>^2.
a=3..9 b=2..9 c=11..29 | Find the mean, median and range of <a>, <c>, <b>, <a+b>, <c+a>.
a=10..99 b=10..99 | Convert <a> from decimal to binary, and <b> to base 5.
a=2..9 b=5..9 | Three consecutive integers add up to <3*(a*b)>. What are they?
a=2..8 b=1..9 | A number is multiplied by <a>, then <b> is added, and the result is <a*(b+2)+b>. What is the number?
"""
MATHS_ENDS = ["", "", "", "", "", " Show your work.", " Think step by step.", " Explain each step briefly."]
LATEX_END = r" Put your final answer in $\boxed{}$."
OPEN = """
a=80..200/20 | Write an email of about <a> words to a <job> asking for an appointment about <topic>.
a=2..5 | Write a polite email to <name> to move our meeting about <topic> by <a> days.
a=3..9 | Write a complaint to a <shop> about an order that came <a> days late. Ask for a refund.
a=100..300/50 | Write a <mood> story of about <a> words about <hero>.
a=1..9 | Continue this story in a <mood> tone: "At <a> in the morning, <hero> heard a knock at the door."
a=2..4 | Write a <mood> poem with <a> stanzas about <topic>.
a=1..3 | Write a haiku about <topic>, then say in one sentence what it means.
a=3..5 | Write a blog post about <topic> with a title, <a> sections and a short conclusion.
a=3..6 | Describe a trip to a <place> from the view of <hero>. Begin each of <a> paragraphs with the same word.
a=1..9 | You are <hero>. Stay in character and answer: what do you think about <topic>?
a=1..9 | Act as an experienced <job>. A customer asks how to begin with <topic>. What do you say?
a=2..4 | Write a dialogue of <a*4> lines between a <job> and <hero> about <topic>.
a=2..3 | Summarize this text in <a> sentences:~~<text>.
a=2..4 | Give <a> key points of this text as a bullet list, then a headline:~~<text>.
a=1..9 | List all numbers and what they stand for in the following text, as JSON.~~<text>.
a=1..9 | Rewrite this text for a child of <a+5> years:~~<text>.
a=2..4 | Read the text and write <a> questions with answers about it.~~"<text>."
a=1..9 | Is this review positive, negative or mixed? Explain in one sentence.~~"<review>."
a=1..9 | Answer this customer review in the name of a <shop>, in a friendly way: "<review>."
a=2..4 | Rewrite the sentence in <a> different styles: "<review>."
a=2..4 | Compare <versus>. Give <a> points for each side and your advice.
a=3..5 | Make a table that compares <versus> by <a> criteria.
a=1..9 | My friend and I disagree about <versus>. Which would you choose for a <job>, and why?
a=3..8 | Give me <a> practical tips to <goal>.
a=2..6 | Make a plan of <a> weeks that helps a busy <job> to <goal>.
a=1..9 | I tried to <goal> and failed twice. What should I do differently?
a=6..14 | Explain to a <a>-year-old how <science>.
a=2..4 | Explain how <science> in <a> paragraphs. Use an everyday comparison.
a=3..5 | What are <a> common mistakes people make about how <science>?
a=1..9 | Explain how <science>, first in one sentence, then in detail.
a=3..6 | <name>, <other> and Sam sit in a row. <name> is not at an end, and Sam is to the left of <other>. Who sits
  where? Reason step by step.
a=3..8 | <name> finished before <other>, Sam finished after <other>, and Kim came in between <name> and <other>. Give
  the order of all four and explain.
a=2..5 | All <pet> on a farm are brown, and some brown animals are fast. Does it follow that some <pet> are fast?
  Explain your reasoning.
a=2..6 | <name> must carry <a*3> <item> across a river in a boat that holds <a>. Someone has to row back each time. How
  many crossings are needed?
a=2..5 | One of three boxes holds <fruit>. Exactly one label is true: A says "in B", B says "not here", C says "not
  here". Where are they?
a=3..6 | Return a JSON array of <a> <record> with made-up values and at least three fields each. Output only JSON.
a=3..7 | Write a Markdown table with <a> rows about <topic>: idea, cost, time needed.
a=3..6 | Turn this into JSON with the keys "who", "what" and "when": <name> and <other> visit the <place> on Friday at
  <a> pm to talk about <topic>.
a=3..6 | Write a CSV with a header and <a> lines of sample data about <record>.
a=3..5 | Discuss the good and bad sides of <topic> for a small town, with <a> arguments on each side.
a=4..9 | Suggest <a> names for a <shop> that also cares about <topic>, with a short reason for each.
a=4..8 | Plan a birthday party for <a*2> guests at a <place> with a budget of $<a*50>. Include a schedule.
a=2..4 | Create a quiz of <a+2> multiple choice questions about <topic>. Mark the right answers.
a=2..5 | Give me a recipe for <treat> for <a> people, with a shopping list and numbered steps.
a=1..9 | What does a <job> do all day? Describe the work, the training and what makes it hard.
a=2..4 | Translate into French and Spanish: "<name> would like <a> <fruit> and a cup of tea, please."
a=1..9 | Write a speech of one minute for <name>, who opens a new <place>. Make it <mood>.
a=1..9 | Write a product description for <item> sold at a <shop>. Keep it <mood> and under <a*10+40> words.
a=2..9 | Write a cover letter for <name>, a <job> with <a> years of experience, who applies at a <place>.
a=5..9 | What questions should I ask before hiring a <job>? List <a> and say why they matter.
"""

STUB_ASKS = [
    "Complete this function.",
    "Complete the following Python function:",
    "Write the body of the function below so that the examples hold.",
    "Fill in the missing code. Answer with the whole function.",
    "Please finish this Python function according to its docstring.",
    "Implement the function described here, and return only code.",
    "Here is a function stub. Give a complete solution in a Python code block.",
]
REQUEST_ASKS = [
    "Write a Python function `{head}` that {does}.",
    "I need a Python function called `{name}` that {does}. Use the signature `{head}`.",
    "Write a function `{head}` that {does}, with a docstring.",
    "In Python, how would I write `{head}` so that it {does}?",
    "Create `{head}` in Python. It {does}. Explain your solution briefly.",
]
EXPLAIN_ASKS = [
    "Explain step by step what this Python function does.",
    "What does this code do, and what does it return for `{call}`?",
    "Write a docstring for this function and suggest a better way to write it if there is one.",
    "Rewrite this function with a plain loop and clear variable names.",
]
FIX_ASKS = ["Find and fix the bug in this function.", "This Python code is wrong. Please fix it."]
TEST_ASKS = [
    "Write pytest tests for this function, including edge cases.",
    "Write a unittest test case for the following function.",
    "Add a few assert statements that test this function, and say what each one checks.",
]
# Small slips that turn a right expression into a wrong one.
SLIPS = [(" // ", " % "), (" and ", " or "), ("[::-1]", ""), (" + 1", ""), (" - 1", ""), (" * ", " + "), (" + ", " - ")]
SLIPS += [(" <= ", " < "), (" >= ", " > "), (" > ", " < "), (" == ", " != "), ("max(", "min("), ("not in", "in")]
SLIPS += [(" - ", " + "), (".lower()", ".upper()"), ("[0]", "[1]"), ("any(", "all("), (" in ", " not in ")]


def _entries(text: str) -> list[str]:
    """The entries of a text, one a line; indented lines go on with the entry before."""
    return re.sub(r"\n\s+", " ", text.strip()).split("\n")


WORDS = {kind: words.split("; ") for kind, words in (line.split(": ", 1) for line in _entries(WORD_LISTS))}
MODULES = {"itertools": itertools, "math": math, "os": os, "re": re}


@dataclass(frozen=True)
class Function:
    """One small function: its signature, what it returns, the expression for it, and calls with their true results."""

    head: str
    doc: str
    expression: str
    calls: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.head.split("(")[0]

    @property
    def imports(self) -> str:
        used = [module for module in MODULES if f"{module}." in self.expression]
        return "".join(f"import {module}\n" for module in used) + ("\n\n" if used else "")

    def stub(self, examples: int) -> str:
        shown = ""
        for call, result in list(zip(self.calls, self.results, strict=True))[:examples]:
            shown += f"    >>> {call} is None\n    True\n" if result == "None" else f"    >>> {call}\n    {result}\n"
        return f'```python\ndef {self.head}:\n    """{self.doc}\n\n{shown}    """\n```'

    def code(self) -> str:
        return f"```python\n{self.imports}def {self.head}:\n    return {self.expression}\n```"

    def broken(self) -> tuple[str, int, str] | None:
        """A wrong expression, the number of the first call that it gets wrong, and its result. None if no slip fits."""
        for right, wrong in SLIPS:
            expression = self.expression.replace(right, wrong, 1)
            try:
                results = _results(self.head, expression, self.calls)
            except (ArithmeticError, LookupError, RecursionError, SyntaxError, TypeError, ValueError):
                continue
            for number, result in enumerate(results):
                if result != self.results[number]:
                    return expression, number, result
        return None


def functions() -> list[Function]:
    found = []
    for entry in re.split(r"\n(?=\S)", FUNCTIONS.strip()):
        head, rest = entry.split("\n", 1)
        doc, expression, arguments = re.sub(r"\n\s+", " ", rest.strip()).split(" @ ")
        calls = tuple(f"{head.split('(')[0]}({each})" for each in arguments.split(" ; "))
        found.append(Function(head, doc, expression, calls, _results(head, expression, calls)))
    return found


def _results(head: str, expression: str, calls: tuple[str, ...]) -> tuple[str, ...]:
    """What the calls return, where the function returns the expression."""
    names: dict[str, object] = dict(MODULES)
    exec(f"from __future__ import annotations\ndef {head}:\n    return {expression}", names)
    return tuple(repr(eval(call, names)) for call in calls)


def from_template(line: str, rng: random.Random) -> str:
    values: dict[str, int | str] = {}
    draws, _, text = line.rpartition(" | ")
    for name, low, high, step in re.findall(r"(\w)=(\d+)\.\.(\d+)(?:/(\d+))?", draws):
        values[name] = rng.randrange(int(low), int(high) + 1, int(step or 1))

    def filled(match: re.Match[str]) -> str:
        expression = match[1]
        if expression in WORDS:
            return str(values.setdefault(expression, rng.choice(WORDS[expression])))
        return str(eval('f"{' + expression + '}"', {}, dict(values)))

    return re.sub(r"<([^<> ]+)>", filled, text).replace("~", "\n")


def distinct(count: int, make: Callable[[int], str]) -> list[str]:
    """The first `count` different results of make(0), make(1), ..."""
    found: dict[str, None] = {}
    for number in range(50 * count):
        found[make(number)] = None
        if len(found) == count:
            return list(found)
    raise ValueError(f"the templates must give {count} different prompts, got {len(found)}")


def templated(templates: str, count: int, rng: random.Random, ends: list[str]) -> list[str]:
    lines = _entries(templates)

    def make(number: int) -> str:
        text = from_template(lines[number % len(lines)], rng)
        return text + rng.choice([*ends, LATEX_END] if "$" in text and "\\" in text else ends)

    return distinct(count, make)


def code_prompts(rng: random.Random) -> list[str]:
    known = functions()
    rng.shuffle(known)

    def stub(number: int) -> str:
        function = known[number % len(known)]
        return f"{rng.choice(STUB_ASKS)}\n\n{function.stub(3 if number < len(known) else 1)}"

    def request(number: int) -> str:
        function = known[number % len(known)]
        does = "returns" + function.doc.removeprefix("Return").removesuffix(".")
        example = f" For example, `{function.calls[0]}` gives `{function.results[0]}`." if rng.random() < 0.5 else ""
        return rng.choice(REQUEST_ASKS).format(head=function.head, name=function.name, does=does) + example

    def about(asks: list[str]) -> Callable[[int], str]:
        chosen = rng.sample(known, len(known))

        def make(number: int) -> str:
            function = chosen[number % len(chosen)]
            return rng.choice(asks).format(call=function.calls[0]) + "\n\n" + function.code()

        return make

    def fixes() -> Iterator[str]:
        for function in rng.sample(known, len(known)):
            if (slip := function.broken()) is not None:
                expression, number, got = slip
                body = f"    # {function.doc}\n    return {expression}"
                code = f"```python\n{function.imports}def {function.head}:\n{body}\n```"
                call, wanted = function.calls[number], function.results[number]
                yield f"{rng.choice(FIX_ASKS)} `{call}` should give `{wanted}` but gives `{got}`.\n\n{code}"

    fixed = list(itertools.islice(fixes(), FIXES))
    if len(fixed) < FIXES:
        raise ValueError(f"the functions must give {FIXES} bugs to fix, got {len(fixed)}")
    other = [f"a=3..9 | {line}" for line in (PROGRAMS + CLASSES).split("\n") if line]
    return [
        *distinct(STUBS, stub),
        *distinct(REQUESTS, request),
        *fixed,
        *distinct(EXPLANATIONS, about(EXPLAIN_ASKS)),
        *distinct(TESTS, about(TEST_ASKS)),
        *templated("\n".join(other), OTHER_CODE, rng, [""]),
    ]


def all_prompts() -> list[str]:
    rng = random.Random(0)
    prompts = templated(MATHS, MATHS_COUNT, rng, MATHS_ENDS) + code_prompts(rng)
    prompts += templated(OPEN, OPEN_COUNT, rng, [""])
    rng.shuffle(prompts)
    return prompts


def main() -> None:
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in all_prompts())
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(lines, encoding="utf-8")
    else:
        sys.stdout.write(lines)


if __name__ == "__main__":
    main()
