"""A hundred texts of every kind that a service is sent."""

import random

PLAIN = (
    *("A man is playing a guitar.", "The quick brown fox jumps over the lazy dog.", "How do I reset my password?"),
    *("Attention weights are not an explanation by themselves.", "Das ist ein Satz auf Deutsch mit Umlauten: äöüß."),
    *("机器学习是人工智能的一个分支。", "это предложение на русском языке", "これは日本語の文です。"),
    "هذه جملة باللغة العربية",
    *("זוהי שורה בעברית", "สวัสดีชาวโลก", "🙂🙃 🚀🚀🚀 👩‍👩‍👧‍👦 🇩🇪", "naïve café résumé", "e\u0301 combining acute"),
    *("\u202eright to left override\u202c", "zero\u200bwidth\u200cjoiners\u200d", "tabs\tand\nnew\r\nlines"),
    *("control \x00\x01\x02\x1f\x7f characters", "\ufeffbyte order mark", "[CLS] [SEP] [MASK] [PAD] as text"),
    *("<script>alert(1)</script>", '{"json": ["inside", 1.5e-3]}', "SELECT * FROM users; --"),
    *("https://example.org/a?b=c&d=%20e#f", "1234567890 3.14159 -1e10 0x7f", "ALL CAPITALS", "a", "", " ", "\n\t "),
    *(".", "!?!?!?", "x" * 300, "word " * 600, "一" * 700, "🙂" * 300),
)


def varied_texts(count: int = 100) -> list[str]:
    """The plain ones, then mixtures of them of up to 600 words, the same in every run."""
    drawn = random.Random(0)  # noqa: S311 - no secret depends on it
    words = " ".join(PLAIN[:24]).split()
    mixed = [
        " ".join(drawn.choices(words, k=drawn.choice((2, 5, 20, 60, 200, 600)))) for _ in range(count - len(PLAIN))
    ]
    return [*PLAIN, *mixed]
