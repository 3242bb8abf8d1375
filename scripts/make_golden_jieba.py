#!/usr/bin/env python3
"""Writes tests/golden/jieba.json: the words that Python's segmenter finds in texts of Chinese, Latin letters, digits and signs.

    pip install jieba==0.42.1
    python3 scripts/make_golden_jieba.py > tests/golden/jieba.json

The texts are invented: some by hand, others combined from pieces with a fixed seed.
"""

import json
import logging
import random

import jieba

jieba.setLogLevel(logging.ERROR)

BY_HAND = [
    "", " ", "\n", "\r\n", "a\r\nb", "\t中\t", "中", "中国", "龘靐㐀㐁", "𠀀𠀁中", "COVID-19", "Wi-Fi", "U.S.", "U.S.A", "COVID-19疫情",
    "他用Wi-Fi上网", "3.14", "3.14.15", "100%", "99.9%", "50%的人", "C++", "c++语言", "C#", "c#和C++", "AT&T", "AT&T公司", "B超", "做B超检查",
    "a.b", "a.1b", "1.a", "a_b", "a-b-c", "--", "-", "a--b", "_", "__init__", ".", "...", "1..2", "a.", ".a", "%", "%%", "5%%", "a%b",
    "+86-10-6255", "2024-07-26", "12:30", "v1.2.3-rc4", "foo@bar.com", "http://example.com/a?b=c&d=e", "K歌", "T恤衫", "4S店", "PM2.5超标",
    "iPhone 15 Pro", "GPT-4o", "Llama-3.1-8B", "H2O", "x86_64", "U盘", "A股", "β-胡萝卜素", "é", "naïve", "№5", "１２３", "ＡＢＣ", "①②",
    "小明硕士毕业于中国科学院计算所，后在日本京都大学深造", "我来到北京清华大学", "他来到了网易杭研大厦", "乒乓球拍卖完了", "南京市长江大桥",
    "「引号」与《书名》", "全角　空格", "换行\n换行", "零宽\u200b字符", "emoji😀表情", "ア行のカタカナ", "한국어", "Привет мир", "龦龥龤鿕鿖",
    "1,234.5元", "￥99", "$9.99", "50~60岁", "(括号)", "[方]", "{花}", "a&b", "&", "#话题#", "#1", "C&A", "R&D部门", "Q&A环节",
]  # fmt: skip
CHINESE = [
    "研究", "生命", "起源", "北京", "上海", "市长", "江大桥", "人工智能", "模型", "注意力", "稀疏", "的", "了", "在", "和", "是", "不", "我们", "他们",
    "李建国", "欧阳小雨", "王", "张三丰", "云计算", "大数据", "量子", "纠缠", "疫情", "防控", "公司", "股份有限公司", "二〇二四年", "三点半", "百分之五",
    "喜欢", "吃", "苹果", "手机", "发布会", "鳜", "魑魅魍魉", "囧", "彧", "龘", "乌鲁木齐", "哈利波特", "霍格沃茨", "蒂姆库克", "区块链", "内卷", "躺平",
]  # fmt: skip
LATIN = [
    "AI", "a", "B", "x1", "GPU", "COVID", "covid", "iOS", "v2", "2024", "7", "0", "3.14", "99%", "1.5%", "Wi", "Fi", "U.S", "N95", "5G", "AT", "T", "c", "C",
    "mRNA", "Qwen2", "kv", "cache", "NASA", "10", "007",
]  # fmt: skip
SIGNS = ["-", ".", "_", "+", "#", "&", "%", "++", "--", "..", "-.", "%.", "._", "&&", "#-"]
OTHERS = [" ", "，", "。", "、", "\n", "：", "（", "）", "“", "”", "!", "?", "/", ":", "@", "=", "*", "~", "　", "\t", "é", "㐀", "！", "·"]


def drawn(rng):
    kinds = rng.choice(([CHINESE, LATIN, SIGNS], [LATIN, SIGNS], [CHINESE, LATIN, SIGNS, OTHERS], [CHINESE], [CHINESE, OTHERS]))
    return "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(2, 14)))


if __name__ == "__main__":
    rng = random.Random(20240726)
    texts = list(dict.fromkeys(BY_HAND + [drawn(rng) for _ in range(900)]))
    print("[\n" + ",\n".join(json.dumps([t, list(jieba.cut(t, cut_all=False))], ensure_ascii=False) for t in texts) + "\n]")
