/** Reads calendar dates: `2020-07-04`, `July 4, 2020`, `4th of July`. Read as expressions, 2020-07-04 would be 2009. */

const months = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec']
const month =
  '(?<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\\.?'
const day = '(?<day>\\d{1,2})\\s*(?:\\^\\s*\\{?)?(?:st|nd|rd|th)?\\}?'
const year = '(?:,?\\s+(?<year>\\d{4}))?'
const patterns = [
  `${month}\\s+${day}${year}`,
  `(?:the\\s+)?${day}\\s+(?:of\\s+)?${month}${year}`,
  '(?<year>\\d{4})-(?<month>\\d\\d)-(?<day>\\d\\d)',
].map((pattern) => new RegExp(`^${pattern}$`, 'iu'))
/** Whether the day or the month comes first is not known, so that these are equal only to dates of the same order. */
const numbers = /^(\d{1,2})\/(\d{1,2})\/(\d{4})$|^(\d\d)-(\d\d)-(\d{4})$/u

/** One text for all ways to write a date in normalised LaTeX; null if the text is none. */
export function dateOf(text: string): string | null {
  const s = text.replace(/\\text\s*\{([^{}]*)\}/gu, '$1').trim()
  const plain = numbers.exec(s)
  if (plain) {
    const parts = plain.slice(1).filter((part) => part !== undefined)
    return `date ${parts.map(Number).join('/')}`
  }
  const found = patterns.map((pattern) => pattern.exec(s)?.groups).find((groups) => groups !== undefined)
  if (!found) return null
  const named = months.indexOf(found.month.slice(0, 3).toLowerCase()) + 1
  return `date ${found.year ?? ''}-${named || Number(found.month)}-${Number(found.day)}`
}
