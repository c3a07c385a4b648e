package tokenize

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"
)

// texts makes texts of every kind that has ever made tokenizers disagree.
type texts struct {
	r        *rand.Rand
	specials []string
}

// samples are a sentence or two in twenty scripts, with marks in both forms.
var samples = []string{
	"The quick brown fox jumps over the lazy dog. It's what we'd've done, isn't it? HTTPServer2Client's camelCase",
	"Größe, Straße, naïve café, e\u0301te\u0301, Ελληνικά: Η γρήγορη αλεπού. Ά ΐ ᾳ̃",
	"Съешь же ещё этих мягких французских булок, да выпей чаю. й и\u0306",
	"דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם",
	"نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. ١٢٣٤ مُحَمَّد",
	"ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३ क्षत्रिय ड़",
	"আমি বাংলায় গান গাই। ১২৩ ক্ষমা ড়",
	"யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் ௧௨௩",
	"తెలుగు భాష చాలా అందమైనది ౧౨౩", "ಕನ್ನಡ ನಾಡು ೧೨೩", "മലയാളം ഭാഷ ൧൨൩", "ગુજરાતી ભાષા ૧૨૩", "ਪੰਜਾਬੀ ਭਾਸ਼ਾ ੧੨੩",
	"เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓ น้ำ", "ພາສາລາວ ສະບາຍດີ ໑໒໓", "မြန်မာဘာသာ ၁၂၃", "ភាសាខ្មែរ ១២៣",
	"我能吞下玻璃而不伤身体。今天天气很好,2024年12月31日,价格是¥1,234.56元。〇々",
	"いろはにほへと ちりぬるを。カタカナ ハンカク ｶﾞｷﾞ が か\u3099 東京都123",
	"다람쥐 헌 쳇바퀴에 타고파 \u1112\u1161\u11ab\u1100\u1173\u11af 한글",
	"ქართული ენა ᲥᲐᲠᲗᲣᲚᲘ", "Հայերեն լեզու և", "አማርኛ ቋንቋ ፩፪፫", "བོད་སྐད་ ༡༢༣", "ᠮᠣᠩᠭᠣᠯ", "𐍅𐌿𐌻𐍆𐌹𐌻𐌰 𝒳𝓎𝔃 𝟙𝟚𝟛 𠀀𠀁",
	"👍🏽 👨‍👩‍👧‍👦 🇩🇪🇯🇵 ❤️ ☺︎ 🤦🏼‍♂️ #️⃣ ™©®",
	"½ ⅓ ² ³ ⅷ Ⅷ ① ㊿ ﬁ ﬀ ﬃ ﬅ ﷺ Å Å Ω ℃ ㎏ ｆｕｌｌ　ｗｉｄｔｈ",
	"a\u0323\u0307 a\u0307\u0323 q\u0307\u0323\u0301 ṩ s\u0323\u0307 \u0344 \u0958 \u2126 \u212b Z\u0335\u0341",
	"don't I'LL we'Ve 'S 'ſ 'T's 're'ab 'Dx ''s '' 'l 'lL can’t ’s",
}

var odd = []string{"\x00", "\x01\x02", "\x1b[31m", "\x7f", "\u0085", "\u00a0", "\u00ad", "\u200b", "\u200c", "\u200d", "\u2028", "\u2029", "\u202e", "\u2060",
	"\ufeff", "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "\u3000", "\u1680", "\u180e", "\v", "\f", "\x1c", "\x1f", "\u0378", "\u1b4e", "\u2ffc", "\U00010d4e", "\U000323af",
	"\U00016d63\U00016d67", "\u0897", "\u1611e", "\u0345", "\u302a", "\U00016ff0", "\u3021", "\u2e80", "\u0903", "\u20dd"}

var corpus = sync.OnceValue(func() []string {
	var out []string
	_ = filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		switch filepath.Ext(path) {
		case ".go", ".md", ".py", ".yaml", ".json", ".sh":
			if b, err := os.ReadFile(path); err == nil && utf8.Valid(b) && len(b) > 100 {
				out = append(out, string(b))
			}
		}
		return nil
	})
	return out
})

func pick[T any](r *rand.Rand, s []T) T { return s[r.IntN(len(s))] }

// part is a run of characters of s.
func (g *texts) part(s string, most int) string {
	rs := len(s)
	if rs == 0 {
		return ""
	}
	from := g.r.IntN(rs)
	end := min(rs, from+1+g.r.IntN(most))
	return strings.ToValidUTF8(s[from:end], "")
}

func (g *texts) rune() rune {
	for {
		var r rune
		switch g.r.IntN(6) {
		case 0:
			r = rune(g.r.IntN(0x80))
		case 1:
			r = rune(g.r.IntN(0x800))
		case 2, 3:
			r = rune(g.r.IntN(0x10000))
		case 4:
			r = 0x10000 + rune(g.r.IntN(0x22000))
		default:
			r = rune(g.r.IntN(0x110000))
		}
		if utf8.ValidRune(r) {
			return r
		}
	}
}

func (g *texts) fragment() string {
	r := g.r
	switch r.IntN(20) {
	case 0, 1, 2:
		return g.part(pick(r, samples), 80)
	case 3, 4, 5:
		return g.part(pick(r, corpus()), 200)
	case 6:
		return strings.Repeat(pick(r, []string{" ", "\n", "\t", "\r\n", "  ", " \n", "\u00a0", "\u3000"}), 1+r.IntN(20))
	case 7:
		return pick(r, odd)
	case 8:
		if len(g.specials) > 0 {
			s := pick(r, g.specials)
			switch r.IntN(6) {
			case 0:
				return s[:r.IntN(len(s)+1)]
			case 1:
				return " " + s + "  "
			case 2:
				return strings.ToUpper(s)
			}
			return s
		}
		return "<|im_start|>"
	case 9:
		var b strings.Builder
		for range 1 + r.IntN(12) {
			b.WriteRune(g.rune())
		}
		return b.String()
	case 10:
		raw := make([]byte, 1+r.IntN(24))
		for i := range raw {
			raw[i] = byte(r.Uint32())
		}
		return strings.ToValidUTF8(string(raw), "\ufffd")
	case 11:
		return strings.Repeat(pick(r, []string{"a", "ab", "=", "-", "*", "é", "한", "字", "0", "A", "aA", "\u0301", "'", "👍", "._", "/"}), 1+r.IntN(100))
	case 12:
		return string(rune('0'+r.IntN(10))) + strings.Repeat(pick(r, []string{"1", "23", ".5", ",000", "٣", "²"}), r.IntN(8))
	case 13:
		const punct = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
		var b strings.Builder
		for range 1 + r.IntN(6) {
			b.WriteByte(punct[r.IntN(len(punct))])
		}
		return b.String()
	case 14:
		return pick(r, []string{"'s", "'S", "'ll", "'LL", "'Ve", "'re", "'m", "'D", "'t", "'ſ", "’s"})
	case 15:
		return string([]rune{g.rune(), pick(r, []rune{0x301, 0x323, 0x345, 0x5b0, 0x93c, 0x3099, 0x1161, 0x11a8, 0xe47})})
	case 16:
		return pick(r, []string{" the", " The", "\n\n", ".\n", " {\n\t", "://", " \"", "\r\n\r\n  ", "\n  \n", " /", "\n/"})
	}
	return g.part(pick(r, samples), 12)
}

func (g *texts) text() string {
	n := 1 + g.r.IntN(8)
	switch g.r.IntN(200) {
	case 0:
		n = 200
	case 1:
		return strings.ToValidUTF8(strings.Repeat(g.fragment(), 1+g.r.IntN(400)), "\ufffd") // a very long word, at times
	case 2:
		return ""
	}
	var b strings.Builder
	for range n {
		b.WriteString(g.fragment())
	}
	return strings.ToValidUTF8(b.String(), "\ufffd")
}
