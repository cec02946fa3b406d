/** Splits an answer into value and unit: `12\text{ cm}^2`, `\$18`, `40\%`, `90\degree`, `5 apples`. */

/** A value with its unit. */
export interface Measured {
  value: string
  /** The canonical name; '' if there is no unit, '%' for percent. */
  unit: string
}

const groups = [
  'mm millimeter millimetre', 'cm centimeter centimetre', 'm meter metre', 'km kilometer kilometre', 'in inch inche', 'ft foot feet', 'yd yard', 'mi mile',
  'g gram', 'kg kilogram', 'mg milligram', 'lb pound lbs', 'oz ounce', 's sec second', 'min minute', 'h hr hour', 'day', 'week', 'month', 'yr year',
  'l liter litre', 'ml milliliter millilitre', 'gal gallon', 'dollar usd buck', 'cent', 'degree deg', 'rad radian', 'unit', 'mph', 'km/h kph kmh', 'm/s',
  'point', 'percent', 'euro', 'inr rupee', 'gbp', 'time', 'way', 'people person', 'n newton', 'j joule', 'w watt', 'v volt', 'hz hertz', 'k kelvin', 'pa pascal',
] // prettier-ignore
const aliases = new Map(groups.flatMap((group) => group.split(' ').map((name, _, names) => [name, names[0]] as const)))

/** Names and abbreviations that count as units even without `\text`. Single letters do not, as they are variables. */
const bare = new Set([...aliases.keys()].filter((name) => name.length > 1 && !['in', 'pa'].includes(name)))

/** The canonical name of a unit: `square centimeters`, `cm^2` and `sq cm` become `cm^2`. */
function canonicalUnit(text: string): string {
  const s = text
    .toLowerCase()
    .replace(/[{}\\]/gu, '')
    .replace(/\bper\b/gu, '/')
    .replace(/\s*\/\s*/gu, '/')
    .trim()
  const word = (name: string) =>
    // ms is no plural of m.
    aliases.get(name) ??
    (name.length > 2 ? aliases.get(name.replace(/s$/u, '')) : undefined) ??
    (name.length > 3 ? name.replace(/s$/u, '') : name)
  const squared = /^(?:square|sq\.?)\s+(.+)$/u.exec(s)
  if (squared) return squared[1].startsWith('unit') ? 'unit^2' : `${word(squared[1])}^2`
  const cubed = /^cubic\s+(.+)$/u.exec(s)
  if (cubed) return `${word(cubed[1])}^3`
  const power = /^([a-z]+)\s*\^?\s*([23])$/u.exec(s)
  if (power) return `${word(power[1])}^${power[2]}`
  const joined = s
    .split('/')
    .map((part) => part.split(/\s+/u).map(word).join(' '))
    .join('/')
  return joined === 'mi/h' ? 'mph' : joined
}

/** Words that are part of the number: 5 million is not 5. */
const scales: Record<string, string> = {
  dozen: '12', hundred: '100', thousand: '10^{3}', million: '10^{6}', billion: '10^{9}', trillion: '10^{12}', lakh: '10^{5}', crore: '10^{7}',
} // prettier-ignore
const scaled = new RegExp(`^(${Object.keys(scales).join('|')})(?: (?:of )?(.*))?$`, 'iu')

/** Text after a number that is no unit, as it changes or denies the number: "5\text{ or more}", "5 squared", "5 to six", "5\text{ (or 6)}". */
const notUnit =
  /^(?:[,+-]|(?:and|or|to|over|plus|minus|less|mod|base|divided|if|is|at|squared|cubed|factorial|hal(?:f|ves)|thirds|fourths|fifths|tenths|hundredths|thousandths)\b)|\b(?:not|never|wrong|false)\b|(?<![A-Za-z^])\d/iu

const currencies: Record<string, string> = { '\\$': 'dollar', '€': 'euro', '£': 'gbp', '¥': 'yen', '₹': 'inr' }

/** Splits the unit off normalised LaTeX. If there is no unit, or nothing else, the whole text is the value. */
export function splitUnit(text: string): Measured {
  let s = text.trim()
  const units: string[] = []
  const money = /^(-?)\s*(\\\$|[€£¥₹])\s*(?=[\d.\\-])/u.exec(s) ?? /^()(\\text\{(?:usd|rs\.?)\})\s*(?=\d)/iu.exec(s)
  if (money) {
    units.push(currencies[money[2]] ?? money[2].slice(6, -1).toLowerCase())
    s = money[1] + s.slice(money[0].length)
  }
  for (let previous = ''; previous !== s;) {
    previous = s
    const tail =
      /\s*\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?\s*([23])\s*\}?)?$/u.exec(s) ??
      /\s*(\\degree|\\%|\\\$|[€£¥₹¢])$/u.exec(s) ??
      /\^\s*\{?\s*\\text\s*\{\s*(st|nd|rd|th)\s*\}\s*\}?$/u.exec(s) ??
      /(?<=^-?[\d.,]+)\s*(st|nd|rd|th)$/u.exec(s) ??
      bareUnit(s)
    if (!tail || tail.index === 0) continue
    let name = tail[1].trim()
    let factor = ''
    for (let scale = scaled.exec(name); scale; scale = scaled.exec(name)) {
      factor += `\\times ${scales[scale[1].toLowerCase()]}`
      name = (scale[2] ?? '').trim()
    }
    if (/^\([A-Z]\)$/u.test(name) || notUnit.test(name)) break
    if (name === '\\degree' && /\\[a-z]/u.test(s.slice(0, tail.index))) break // \sin 30\degree
    const plain =
      name === '\\degree' ? 'degree' : name === '\\%' ? '%' : name === '¢' ? 'cent' : (currencies[name] ?? canonicalUnit(name))
    units.unshift(tail[2] ? `${plain}^${tail[2]}` : plain)
    s = s.slice(0, tail.index).trim()
    if (factor !== '') s = /^-?[\d.,]+$/u.test(s) ? s + factor : `(${s})${factor}`
  }
  const known = units.filter((unit) => unit !== '').map((unit) => (unit === 'percent' ? '%' : unit))
  return { value: s, unit: [...new Set(known)].join(' ') }
}

/** Matches `12 cm^{2}`, `5 apples in total`: known units after anything, any words after a lone number. */
function bareUnit(s: string): RegExpExecArray | null {
  const words = /(?<=^-?[\d.,/]+)\s+([a-zA-Z]{2,}(?:[ /][a-zA-Z]+)*)$/u.exec(s)
  if (words) return words
  const known = /(?<=[\d\s)}])\s*(?<![A-Za-z\\{])((?:[a-zA-Z]{2,}|m)(?:\/[a-zA-Z]+)?)(?:\s*\^\s*\{?\s*([23])\s*\}?)?$/u.exec(s)
  return known && bare.has(canonicalSingle(known[1])) ? known : null
}

const canonicalSingle = (name: string) => {
  const lower = name.toLowerCase()
  return bare.has(lower) ? lower : lower.replace(/s$/u, '')
}
