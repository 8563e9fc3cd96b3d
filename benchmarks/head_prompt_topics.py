"""Small Python tasks for the prompts that prompts.py makes: what to ask for, and a true answer for the examples.

FUNCTIONS has for each function its signature and, indented, what it returns, an expression that computes it, and the
arguments of its examples (split by " ; "). PROGRAMS and CLASSES are requests in words, one a line.
"""

from __future__ import annotations

FUNCTIONS = r"""
sum_of_odds(nums: list[int]) -> int
  Return the sum of the odd numbers in nums. @ sum(n for n in nums if n % 2 == 1) @ [1, 2, 3, 4] ; [8, 10] ; []
largest_gap(nums: list[int]) -> int
  Return the difference between the largest and smallest number. @ max(nums) - min(nums) @ [4, 9, 1] ; [5] ; [-3, 3]
count_above(nums: list[int], limit: int) -> int
  Return how many numbers are greater than limit. @ sum(n > limit for n in nums) @ [1, 5, 9], 4 ; [2, 2], 2 ; [], 0
double_all(nums: list[int]) -> list[int]
  Return a list with every number doubled. @ [n * 2 for n in nums] @ [1, 2, 3] ; [] ; [-4, 0]
clamp(value: int, low: int, high: int) -> int
  Return value limited to the range from low to high. @ max(low, min(high, value)) @ 15, 0, 10 ; -2, 0, 10 ; 7, 0, 10
average(nums: list[float]) -> float
  Return the mean of nums, or 0.0 if nums is empty. @ sum(nums) / len(nums) if nums else 0.0 @ [1.0, 2.0, 6.0] ; []
middle_value(nums: list[int]) -> int
  Return the median of a list of odd length. @ sorted(nums)[len(nums) // 2] @ [9, 1, 5] ; [2] ; [8, 8, 1, 0, 3]
last_digit(n: int) -> int
  Return the last decimal digit of n, ignoring its sign. @ abs(n) % 10 @ 1234 ; -57 ; 0
digit_total(n: int) -> int
  Return the sum of the decimal digits of n. @ sum(int(d) for d in str(abs(n))) @ 482 ; 0 ; -19
count_digit(n: int, digit: int) -> int
  Return how often digit occurs in the decimal form of n. @ str(n).count(str(digit)) @ 12112, 1 ; 305, 7 ; 0, 0
reverse_number(n: int) -> int
  Return the non-negative n with its decimal digits reversed. @ int(str(n)[::-1]) @ 123 ; 400 ; 7
is_leap(year: int) -> bool
  Return whether year is a leap year. @ year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) @ 2024 ; 1900 ; 2000
is_perfect_square(n: int) -> bool
  Return whether n is the square of an integer. @ n >= 0 and math.isqrt(n) ** 2 == n @ 49 ; 50 ; 0
divisors(n: int) -> list[int]
  Return all positive divisors of n in ascending order. @ [d for d in range(1, n + 1) if n % d == 0] @ 12 ; 7 ; 1
count_divisors(n: int) -> int
  Return the number of positive divisors of n. @ sum(n % d == 0 for d in range(1, n + 1)) @ 10 ; 16 ; 1
is_perfect_number(n: int) -> bool
  Return whether n equals the sum of its proper divisors. @ n > 1 and sum(d for d in range(1, n) if n % d == 0) == n @
  28 ; 12
prime_check(n: int) -> bool
  Return whether n is a prime number. @ n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1)) @ 13 ; 21 ; 1
primes_below(limit: int) -> list[int]
  Return the primes smaller than limit. @ [n for n in range(2, limit) if all(n % d for d in range(2, n))] @ 12 ; 2 ; 20
common_multiple(a: int, b: int) -> int
  Return the least common multiple of two positive integers. @ a * b // math.gcd(a, b) @ 4, 6 ; 3, 5 ; 8, 8
triangular(n: int) -> int
  Return the sum of the integers from 1 to n. @ n * (n + 1) // 2 @ 4 ; 1 ; 100
sum_of_squares(n: int) -> int
  Return the sum of the squares of 1 to n. @ sum(k * k for k in range(1, n + 1)) @ 3 ; 1 ; 5
power_of_two(n: int) -> bool
  Return whether n is a power of two. @ n > 0 and n & (n - 1) == 0 @ 16 ; 18 ; 1
count_one_bits(n: int) -> int
  Return how many 1 bits the binary form of n has. @ bin(n).count("1") @ 7 ; 8 ; 0
from_binary(bits: str) -> int
  Return the number that a string of binary digits stands for. @ int(bits, 2) @ "101" ; "0" ; "1111"
to_hex_color(red: int, green: int, blue: int) -> str
  Return the colour as a hex code. @ f"#{red:02x}{green:02x}{blue:02x}" @ 255, 0, 128 ; 0, 0, 0
nth_fibonacci(n: int) -> int
  Return F(n) where F(0) = 0 and F(1) = 1. @ n if n < 2 else nth_fibonacci(n - 1) + nth_fibonacci(n - 2) @ 7 ; 0 ; 10
collatz_steps(n: int) -> int
  Return the Collatz steps from n to 1. @ 0 if n == 1 else 1 + collatz_steps(n // 2 if n % 2 == 0 else 3 * n + 1)
  @ 6 ; 1
digital_root(n: int) -> int
  Return the digit sum of n, repeated until one digit is left. @ 0 if n == 0 else 1 + (n - 1) % 9 @ 987 ; 0 ; 18
choose(n: int, k: int) -> int
  Return in how many ways k things can be picked from n. @ math.comb(n, k) @ 5, 2 ; 4, 0 ; 10, 3
celsius_to_fahrenheit(celsius: float) -> float
  Return the temperature in degrees Fahrenheit. @ celsius * 9 / 5 + 32 @ 100.0 ; 0.0 ; -40.0
circle_area(radius: float) -> float
  Return the area of a circle, rounded to two places. @ round(math.pi * radius ** 2, 2) @ 1.0 ; 2.5 ; 0.0
distance(x1: float, y1: float, x2: float, y2: float) -> float
  Return the straight-line distance between two points. @ math.hypot(x2 - x1, y2 - y1) @ 0, 0, 3, 4 ; 1, 1, 1, 1
is_triangle(a: int, b: int, c: int) -> bool
  Return whether sides a, b and c can form a triangle. @ a + b > c and b + c > a and a + c > b @ 3, 4, 5 ; 1, 2, 3
is_right_triangle(a: int, b: int, c: int) -> bool
  Return whether the longest side c makes a right angle opposite it. @ a * a + b * b == c * c @ 5, 12, 13 ; 4, 5, 6
percent_change(old: float, new: float) -> float
  Return the change from old to new in percent. @ (new - old) / old * 100 @ 50.0, 75.0 ; 80.0, 60.0
price_after_discount(price: float, percent: float) -> float
  Return the price after the discount, in cents precision. @ round(price * (100 - percent) / 100, 2)
  @ 80.0, 25 ; 9.99, 0
compound(amount: float, rate: float, years: int) -> float
  Return the amount after yearly interest at rate percent. @ round(amount * (1 + rate / 100) ** years, 2)
  @ 100, 5, 2 ; 50, 0, 3
body_mass_index(weight_kg: float, height_m: float) -> float
  Return weight over squared height, rounded to one place. @ round(weight_kg / height_m ** 2, 1) @ 70, 1.75 ; 50, 1.6
split_bill(total: int, people: int) -> tuple[int, int]
  Return each person's whole share and the remainder. @ (total // people, total % people) @ 100, 3 ; 40, 4
coins_needed(cents: int) -> int
  Return the fewest coins of 25, 10, 5 and 1. @ cents // 25 + cents % 25 // 10 + cents % 25 % 10 // 5 + cents % 5
  @ 41 ; 99
format_seconds(seconds: int) -> str
  Return the duration as minutes and seconds. @ f"{seconds // 60}:{seconds % 60:02d}" @ 125 ; 59 ; 600
minutes_between(start: str, end: str) -> int
  Return the minutes from start to end ("HH:MM", same day). @ (lambda m: m(end) - m(start))(lambda t: int(t[:2]) * 60
  + int(t[3:])) @ "09:30", "11:00" ; "08:00", "08:05"
to_24_hour(hour: int, is_pm: bool) -> int
  Return the hour on a 24-hour clock. @ hour % 12 + (12 if is_pm else 0) @ 3, True ; 12, False ; 12, True
days_to_weeks(days: int) -> str
  Return the days as whole weeks and days. @ f"{days // 7} weeks and {days % 7} days" @ 17 ; 7 ; 3
is_weekend(day: str) -> bool
  Return whether an English day name is on the weekend. @ day.lower() in ("saturday", "sunday") @ "Sunday" ; "monday"
letter_grade(score: int) -> str
  Return "A" from 90, "B" from 80, "C" from 70, else "F". @ "A" if score >= 90 else "B" if score >= 80 else "C" if
  score >= 70 else "F" @ 93 ; 80 ; 41
count_vowels(text: str) -> int
  Return the number of vowels in text, in either case. @ sum(c in "aeiou" for c in text.lower()) @ "Orange" ; "sky" ; ""
drop_vowels(text: str) -> str
  Return text without its vowels. @ "".join(c for c in text if c.lower() not in "aeiou")
  @ "Umbrella" ; "rhythm" ; "aeiou"
reverse_words(sentence: str) -> str
  Return the sentence with its words in reverse order. @ " ".join(sentence.split()[::-1]) @ "red green blue" ; "one"
reverse_each_word(sentence: str) -> str
  Return the sentence with the letters of each word reversed. @ " ".join(w[::-1] for w in sentence.split())
  @ "good day" ; "abc"
longest_word(sentence: str) -> str
  Return the first of the longest words. @ max(sentence.split(), key=len) @ "we love gardening" ; "to be or"
shortest_word_length(sentence: str) -> int
  Return the length of the shortest word. @ min(len(w) for w in sentence.split()) @ "a quiet lake" ; "seven birds"
count_words(text: str) -> int
  Return how many words separated by white space text has. @ len(text.split()) @ "the big  dog" ; "" ; "hello"
title_words(text: str) -> str
  Return text with each word capitalized. @ " ".join(w.capitalize() for w in text.split()) @ "north wind" ; "aBC dEF"
acronym(phrase: str) -> str
  Return the upper-case first letters of the words. @ "".join(w[0].upper() for w in phrase.split())
  @ "portable network graphics" ; "as soon as possible"
initials(full_name: str) -> str
  Return the initials, each followed by a dot. @ "".join(w[0].upper() + "." for w in full_name.split())
  @ "Maria Lopez" ; "jan van dyk"
reads_same_backwards(text: str) -> bool
  Return whether the letters read the same backwards, ignoring case. @ text.lower() == text.lower()[::-1]
  @ "Level" ; "table" ; ""
same_letters(first: str, second: str) -> bool
  Return whether the two words are anagrams. @ sorted(first.lower()) == sorted(second.lower())
  @ "stone", "Notes" ; "cat", "act!"
letter_counts(text: str) -> dict[str, int]
  Return how often each character occurs. @ {c: text.count(c) for c in sorted(set(text))} @ "banana" ; "" ; "zz"
most_common_letter(text: str) -> str
  Return the most frequent character (the smallest on a tie). @ min(text, key=lambda c: (-text.count(c), c))
  @ "pepper" ; "ba"
first_unique(text: str) -> str
  Return the first character that occurs once, or "". @ next((c for c in text if text.count(c) == 1), "")
  @ "swiss" ; "aabb"
squeeze(text: str) -> str
  Return text with runs of the same character reduced to one. @ "".join(k for k, _ in itertools.groupby(text))
  @ "bookkeeper" ; "aaa"
run_lengths(text: str) -> list[tuple[str, int]]
  Return each run of equal characters with its length. @ [(k, len(list(g))) for k, g in itertools.groupby(text)]
  @ "aabccc" ; ""
compress(text: str) -> str
  Return text in run-length form. @ "".join(f"{k}{len(list(g))}" for k, g in itertools.groupby(text)) @ "aaab" ; "xyz"
shift_letters(text: str, shift: int) -> str
  Return a lower-case word in Caesar code. @ "".join(chr((ord(c) - 97 + shift) % 26 + 97) for c in text)
  @ "xyz", 3 ; "code", 1
swap_ends(text: str) -> str
  Return text with first and last character exchanged. @ text if len(text) < 2 else text[-1] + text[1:-1] + text[0]
  @ "house" ; "a"
middle_characters(text: str) -> str
  Return the one or two characters in the middle. @ text[(len(text) - 1) // 2 : len(text) // 2 + 1] @ "river" ; "lake"
mask_card(number: str) -> str
  Return number with all but its last four characters as "*". @ "*" * (len(number) - 4) + number[-4:]
  @ "12345678" ; "9876"
is_valid_pin(pin: str) -> bool
  Return whether pin is exactly four digits. @ len(pin) == 4 and pin.isdigit() @ "0427" ; "12a4" ; "12345"
to_snake(name: str) -> str
  Return a camelCase name in snake_case. @ "".join("_" + c.lower() if c.isupper() else c for c in name)
  @ "userName" ; "maxFileSize"
to_camel(name: str) -> str
  Return a snake_case name in camelCase. @ name.split("_")[0] + "".join(w.capitalize() for w in name.split("_")[1:]) @
  "user_name" ; "total"
slug(title: str) -> str
  Return the title in lower case with hyphens between words. @ "-".join(title.lower().split())
  @ "My First Post" ; "Hello"
file_extension(filename: str) -> str
  Return the part after the last dot, or "". @ filename.rsplit(".", 1)[1] if "." in filename else ""
  @ "photo.jpg" ; "a.tar.gz" ; "README"
domain_of(email: str) -> str
  Return the part of an address after the at sign. @ email.split("@")[1] @ "ana@example.com" ; "x@mail.org"
parse_pairs(text: str) -> dict[str, str]
  Return the pairs of a text like "a=1;b=2". @ dict(p.split("=") for p in text.split(";")) if text else {}
  @ "a=1;b=2" ; ""
parse_ints(text: str) -> list[int]
  Return the whole numbers of a comma-separated text. @ [int(p) for p in text.split(",")] @ "3, 14, 15" ; "7"
only_digits(text: str) -> str
  Return the digits of text in their order. @ "".join(c for c in text if c.isdigit()) @ "tel. 555-01" ; "none"
sum_numbers_in(text: str) -> int
  Return the sum of the whole numbers in text. @ sum(map(int, re.findall("[0-9]+", text)))
  @ "3 cats and 12 dogs" ; "none"
common_prefix(first: str, second: str) -> str
  Return the longest start that both texts share. @ os.path.commonprefix([first, second])
  @ "flower", "flow" ; "dog", "cat"
starts_with_any(text: str, starts: list[str]) -> bool
  Return whether text begins with one of starts. @ any(text.startswith(s) for s in starts)
  @ "import os", ["from", "import"] ; "x", []
pad_left(text: str, width: int) -> str
  Return text filled with "." on the left up to width. @ text.rjust(width, ".") @ "7", 3 ; "word", 2
repeat_letters(text: str, times: int) -> str
  Return text with every character repeated. @ "".join(c * times for c in text) @ "abc", 2 ; "hi", 0
alternate_case(text: str) -> str
  Return text with upper and lower case in turns. @ "".join(c.lower() if i % 2 else c.upper() for i, c in
  enumerate(text)) @ "python" ; "A"
interleave(first: str, second: str) -> str
  Return the characters of two equally long texts in turns. @ "".join(a + b for a, b in zip(first, second))
  @ "ace", "bdf" ; "", ""
hamming(first: str, second: str) -> int
  Return at how many places two equally long texts differ. @ sum(a != b for a, b in zip(first, second))
  @ "karma", "korma" ; "ab", "ba"
contains_letters(text: str, letters: str) -> bool
  Return whether text contains every one of letters. @ set(letters) <= set(text) @ "notebook", "ote" ; "pen", "pad"
bracket_depth(text: str) -> int
  Return how deeply round brackets are nested. @ max(text[:i].count("(") - text[:i].count(")") for i in
  range(len(text) + 1)) @ "(a(b)c)" ; "abc"
unique_in_order(items: list[int]) -> list[int]
  Return the items without repeats, in order of first occurrence. @ list(dict.fromkeys(items)) @ [3, 1, 3, 2, 1] ; []
shared_items(first: list[int], second: list[int]) -> list[int]
  Return the values in both lists, sorted, without repeats. @ sorted(set(first) & set(second))
  @ [1, 2, 3], [3, 2, 9] ; [1], []
missing_numbers(nums: list[int]) -> list[int]
  Return what is missing between the least and the greatest number.
  @ [n for n in range(min(nums), max(nums)) if n not in nums] @ [2, 5, 7] ; [1, 2]
rotate_left(items: list[int], steps: int) -> list[int]
  Return the non-empty list rotated to the left. @ items[steps % len(items):] + items[:steps % len(items)]
  @ [1, 2, 3, 4], 1 ; [1, 2, 3], 5
every_other(items: list[int]) -> list[int]
  Return every second item, beginning with the first. @ items[::2] @ [5, 6, 7, 8, 9] ; []
chunks(items: list[int], size: int) -> list[list[int]]
  Return the list cut into parts of at most size items. @ [items[i:i + size] for i in range(0, len(items), size)]
  @ [1, 2, 3, 4, 5], 2 ; [], 3
sliding_sums(nums: list[int], width: int) -> list[int]
  Return the sums of all windows of width numbers. @ [sum(nums[i:i + width]) for i in range(len(nums) - width + 1)]
  @ [1, 2, 3, 4], 2 ; [5], 2
running_totals(nums: list[int]) -> list[int]
  Return the sums of the first one, two, three ... numbers. @ list(itertools.accumulate(nums))
  @ [1, 2, 3] ; [] ; [5, -5]
running_highs(nums: list[int]) -> list[int]
  Return the greatest number seen so far at each place. @ list(itertools.accumulate(nums, max)) @ [2, 1, 5, 3] ; []
is_sorted(nums: list[int]) -> bool
  Return whether nums is in ascending order. @ all(a <= b for a, b in zip(nums, nums[1:])) @ [1, 2, 2, 5] ; [3, 1] ; []
is_zigzag(nums: list[int]) -> bool
  Return whether neighbours always differ in sign. @ all(a * b < 0 for a, b in zip(nums, nums[1:]))
  @ [1, -2, 3] ; [1, 2]
second_largest(nums: list[int]) -> int
  Return the second largest of the different numbers. @ sorted(set(nums))[-2] @ [4, 9, 9, 7] ; [1, 2]
index_of_max(nums: list[int]) -> int
  Return the first place of the largest number. @ nums.index(max(nums)) @ [3, 8, 8, 1] ; [5]
closest_to(nums: list[int], target: int) -> int
  Return the number nearest to target. @ min(nums, key=lambda n: abs(n - target)) @ [1, 6, 10], 7 ; [4], 0
pair_with_sum(nums: list[int], total: int) -> bool
  Return whether two different places add up to total. @ any(a + b == total for a, b in itertools.combinations(nums,
  2)) @ [1, 5, 7], 12 ; [6], 12
count_pairs(nums: list[int], gap: int) -> int
  Return how many pairs of places differ by gap. @ sum(abs(a - b) == gap for a, b in itertools.combinations(nums, 2))
  @ [1, 3, 5], 2 ; [], 1
best_profit(prices: list[int]) -> int
  Return the best gain from buying once and selling later, or 0.
  @ max([b - a for a, b in itertools.combinations(prices, 2)] + [0]) @ [7, 2, 6, 3] ; [5, 4]
product_of(nums: list[int]) -> int
  Return the product of all numbers (1 for none). @ math.prod(nums) @ [2, 3, 4] ; [] ; [5, 0]
weighted_mean(values: list[float], weights: list[float]) -> float
  Return the mean of values by weights. @ sum(v * w for v, w in zip(values, weights)) / sum(weights)
  @ [1.0, 3.0], [1.0, 3.0] ; [4.0], [2.0]
dot_product(a: list[int], b: list[int]) -> int
  Return the sum of the products of equal places. @ sum(x * y for x, y in zip(a, b)) @ [1, 2, 3], [4, 5, 6] ; [], []
add_vectors(a: list[int], b: list[int]) -> list[int]
  Return the sums of equal places. @ [x + y for x, y in zip(a, b)] @ [1, 2], [3, 4] ; [], []
transpose(rows: list[list[int]]) -> list[list[int]]
  Return the matrix with rows and columns exchanged. @ [list(c) for c in zip(*rows)] @ [[1, 2], [3, 4]] ; [[5, 6, 7]]
row_sums(rows: list[list[int]]) -> list[int]
  Return the sum of each row. @ [sum(row) for row in rows] @ [[1, 2], [3, 4]] ; [[], [7]]
column_max(rows: list[list[int]]) -> list[int]
  Return the largest number of each column. @ [max(c) for c in zip(*rows)] @ [[1, 9], [4, 2]] ; [[3]]
diagonal_sum(rows: list[list[int]]) -> int
  Return the sum of the main diagonal. @ sum(rows[i][i] for i in range(len(rows))) @ [[1, 2], [3, 4]] ; [[7]]
identity_matrix(size: int) -> list[list[int]]
  Return the identity matrix. @ [[int(i == j) for j in range(size)] for i in range(size)] @ 2 ; 1
turn_right(rows: list[list[int]]) -> list[list[int]]
  Return the matrix turned clockwise by a quarter. @ [list(c) for c in zip(*rows[::-1])]
  @ [[1, 2], [3, 4]] ; [[1, 2, 3]]
flatten(lists: list[list[int]]) -> list[int]
  Return the items of all lists in one list. @ [i for inner in lists for i in inner] @ [[1, 2], [], [3]] ; []
times_table(n: int, rows: int) -> list[str]
  Return lines such as "3 x 2 = 6". @ [f"{n} x {k} = {n * k}" for k in range(1, rows + 1)] @ 3, 2 ; 7, 1
pascal_row(n: int) -> list[int]
  Return row n of Pascal's triangle, counted from 0. @ [math.comb(n, k) for k in range(n + 1)] @ 4 ; 0
staircase(n: int) -> list[str]
  Return n lines with 1, 2, ... n hash signs. @ ["#" * k for k in range(1, n + 1)] @ 3 ; 0
fizz_words(n: int) -> list[str]
  Return 1 to n, with "hop" for multiples of 4. @ ["hop" if k % 4 == 0 else str(k) for k in range(1, n + 1)] @ 5 ; 1
invert_dict(data: dict[str, int]) -> dict[int, str]
  Return the dict with keys and values exchanged. @ {v: k for k, v in data.items()} @ {"a": 1, "b": 2} ; {}
merge_counts(a: dict[str, int], b: dict[str, int]) -> dict[str, int]
  Return the counts of both added up, by sorted key. @ {k: a.get(k, 0) + b.get(k, 0) for k in sorted(a | b)}
  @ {"x": 1}, {"x": 2, "y": 5} ; {}, {}
keys_with_value(data: dict[str, int], value: int) -> list[str]
  Return the sorted keys that have the value. @ sorted(k for k, v in data.items() if v == value)
  @ {"b": 1, "a": 1, "c": 2}, 1 ; {}, 0
best_scorer(scores: dict[str, int]) -> str
  Return the name with the highest score. @ max(scores, key=lambda name: scores[name])
  @ {"Ida": 7, "Bo": 9} ; {"Kim": 0}
filter_scores(scores: dict[str, int], least: int) -> dict[str, int]
  Return the entries that reach least. @ {k: v for k, v in scores.items() if v >= least}
  @ {"Ida": 7, "Bo": 4}, 5 ; {}, 1
total_price(cart: dict[str, int], prices: dict[str, int]) -> int
  Return what the cart costs. @ sum(prices[k] * n for k, n in cart.items())
  @ {"tea": 2, "jam": 1}, {"tea": 3, "jam": 4} ; {}, {}
group_by_length(words: list[str]) -> dict[int, list[str]]
  Return the words by their length. @ {n: [w for w in words if len(w) == n] for n in sorted(set(map(len, words)))}
  @ ["to", "sea", "my"] ; []
group_by_first(words: list[str]) -> dict[str, list[str]]
  Return the words by first letter. @ {c: [w for w in words if w[0] == c] for c in sorted({w[0] for w in words})}
  @ ["fig", "pea", "fir"] ; []
index_words(words: list[str]) -> dict[str, int]
  Return the place of the first occurrence of each word. @ {w: words.index(w) for w in words} @ ["on", "off", "on"] ; []
sort_by_length(words: list[str]) -> list[str]
  Return the words by length, then by alphabet. @ sorted(words, key=lambda w: (len(w), w))
  @ ["plum", "fig", "kiwi", "nut"] ; []
sort_by_last(words: list[str]) -> list[str]
  Return the words sorted by last letter. @ sorted(words, key=lambda w: w[-1]) @ ["sun", "tea", "cab"] ; []
sort_by_age(people: list[tuple[str, int]]) -> list[str]
  Return the names, youngest first. @ [name for name, age in sorted(people, key=lambda p: p[1])]
  @ [("Al", 40), ("Bea", 8)] ; []
join_names(names: list[str]) -> str
  Return the names with commas and a final "and". @ ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else
  "".join(names) @ ["Ann", "Ben", "Cy"] ; ["Ann"]
longest_run(items: list[int]) -> int
  Return the length of the longest run of equal items. @ max([len(list(g)) for _, g in itertools.groupby(items)] or
  [0]) @ [1, 1, 2, 2, 2, 3] ; []
zeros_last(nums: list[int]) -> list[int]
  Return nums with all zeros moved to the end. @ [n for n in nums if n] + [0] * nums.count(0) @ [0, 3, 0, 5] ; [1]
split_by_sign(nums: list[int]) -> tuple[list[int], list[int]]
  Return the negative numbers and the others. @ ([n for n in nums if n < 0], [n for n in nums if n >= 0])
  @ [3, -1, 0, -7] ; []
remove_at(items: list[int], place: int) -> list[int]
  Return a new list without the item at place. @ items[:place] + items[place + 1:] @ [4, 5, 6], 1 ; [9], 0
subsets_of(items: list[int], size: int) -> list[list[int]]
  Return all selections of size items. @ [list(c) for c in itertools.combinations(items, size)] @ [1, 2, 3], 2 ; [1], 0
orderings(text: str) -> list[str]
  Return all different orders of the letters, sorted. @ sorted({"".join(p) for p in itertools.permutations(text)})
  @ "abc" ; "aa"
manhattan(a: tuple[int, int], b: tuple[int, int]) -> int
  Return the walking distance on a grid. @ abs(a[0] - b[0]) + abs(a[1] - b[1]) @ (0, 0), (3, 4) ; (1, 1), (1, 1)
walk(moves: str) -> tuple[int, int]
  Return where U, D, L and R steps from (0, 0) lead. @ (moves.count("R") - moves.count("L"), moves.count("U") -
  moves.count("D")) @ "UURD" ; ""
overlap(a: tuple[int, int], b: tuple[int, int]) -> int
  Return how long two intervals overlap. @ max(0, min(a[1], b[1]) - max(a[0], b[0])) @ (1, 6), (4, 9) ; (1, 2), (3, 4)
ways_to_climb(steps: int) -> int
  Return in how many ways one can climb by 1 or 2 steps. @ 1 if steps < 2 else ways_to_climb(steps - 1) +
  ways_to_climb(steps - 2) @ 4 ; 1
count_paths(rows: int, columns: int) -> int
  Return how many ways lead right and down across a grid of cells. @ math.comb(rows + columns - 2, rows - 1)
  @ 3, 3 ; 1, 5
int_or_none(text: str) -> int | None
  Return text as a non-negative whole number, or None. @ int(text) if text.isdigit() else None @ "42" ; "4x" ; ""
first_or_default(items: list[int], default: int) -> int
  Return the first item, or default if there is none. @ items[0] if items else default @ [3, 4], 0 ; [], 9
positive_sum_or_none(nums: list[int]) -> int | None
  Return the sum of the positive numbers, or None if there is none. @ sum(n for n in nums if n > 0) or None
  @ [1, -2, 3] ; [-1]
top_three(nums: list[int]) -> list[int]
  Return the three largest numbers, largest first. @ sorted(nums, reverse=True)[:3] @ [5, 1, 8, 3] ; [2, 7]
to_binary(n: int) -> str
  Return the non-negative n as a string of binary digits without a prefix. @ bin(n)[2:] @ 10 ; 0 ; 255
pairwise_differences(nums: list[int]) -> list[int]
  Return each number minus the one before it. @ [b - a for a, b in zip(nums, nums[1:])] @ [1, 4, 9, 16] ; [3]
common_divisor(a: int, b: int) -> int
  Return the greatest common divisor of a and b. @ math.gcd(a, b) @ 12, 18 ; 7, 5 ; 0, 4
factorial_of(n: int) -> int
  Return the product of the integers from 1 to n. @ 1 if n < 2 else n * factorial_of(n - 1) @ 5 ; 0 ; 3
has_repeats(items: list[int]) -> bool
  Return whether some item occurs more than once. @ len(set(items)) < len(items) @ [1, 2, 1] ; [1, 2, 3] ; []
"""

PROGRAMS = """
Write a Python script that reads a CSV file of <record> and prints the average of each numeric column.
Write a Python script that counts the most common words in a text file about <subject>.
Write a Python program in which the user guesses a number from 1 to <10*a> and gets hints.
Write a small command line to-do list for <record> in Python, saved as JSON.
Write a Python program that asks for <record> one after another and prints them sorted.
How do I read a JSON file of <record> in Python and handle a missing file or bad data?
Show me how to sort a list of dictionaries about <record> by two keys in Python.
Write a Python generator that yields <record> from a big file one at a time. Explain why it saves memory.
Write a Python decorator that <deco>, and show how to use it.
Using sqlite3, write Python code that makes a table of <record>, inserts <a> rows and queries them.
Explain the difference between <pair> in Python with short examples.
What does <feature> do in Python? Give two short examples.
Implement <algorithm> in Python with comments, and state its time complexity.
Implement <algorithm> in Python, then write pytest tests for it.
Walk me through <algorithm> on a list of <a+3> small numbers, then give Python code.
Write a regular expression in Python that matches <pattern>, and explain each part.
Write a Python function that validates <pattern> and raises ValueError with a helpful message otherwise.
I get `<error>` in my Python program that handles <record>. What are common causes and how do I fix them?
Use argparse to write a Python tool that renames all files of <record> in a folder. Add a dry-run option.
Write an asyncio example in Python that fetches <a> lists of <record> at the same time (simulate with sleep).
Write a Python function that simulates <a> dice <10*a> times and returns a histogram as a dict.
Refactor this idea into clean Python: a loop over <record> that builds a string with `+` and uses global variables.
"""

CLASSES = """
Write a Python class `<cls>` with methods to add, remove and list <record>.
Write a Python dataclass for <record> with validation in `__post_init__` and an example of its use.
Implement <structure> as a Python class with type hints and docstrings.
Implement <structure> in Python without using any library. Include a short demo.
Write a Python class `<cls>` that stores <record>, supports `len()` and iteration, and can be saved to JSON.
Design a small class hierarchy in Python for <record>, with one abstract base class and <a//2+1> subclasses.
Write unit tests with unittest for a class `<cls>` that has `add(item)`, `remove(item)` and `total()`.
"""
